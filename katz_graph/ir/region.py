"""Describes a step region: the part of a graph that is run once per evaluation.

Loop-carried values are slots, as in MLIR's `scf.for`: `next_i` of StepEnd becomes `previous_i` of
StepBegin one evaluation later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SLOTS = 8  # previous_1 to previous_8


BEGIN, END = "step_begin", "step_end"


SWITCH = "switch"


CROP = "StepCrop"  # the type of node behind which operations see a part of the latent


@dataclass(frozen=True, slots=True)
class Ref:
    """Output number `output` of an operation of the same evaluation."""

    operation: str
    output: int = 0


@dataclass(frozen=True, slots=True)
class Previous:
    """The loop-carried value of slot 1 to 8, as the evaluation before left it."""

    slot: int


@dataclass(frozen=True, slots=True)
class Operation:
    """Represents one node of a region, or a computation that a pass made: what runs (`stage`) on
    which values, references and slots.
    """

    id: str
    stage: str
    type: str
    inputs: Mapping[str, Any]
    required: tuple[str, ...] = ()  # inputs that must come to something

    def references(self) -> Iterator[tuple[str, Ref]]:
        return ((name, value) for name, value in self.inputs.items() if isinstance(value, Ref))

    def slots(self) -> Iterator[int]:
        return (value.slot for value in self.inputs.values() if isinstance(value, Previous))


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a latent, in cells."""

    top: int
    left: int
    height: int
    width: int

    @property
    def cells(self) -> tuple[int, int]:
        return self.height, self.width


@dataclass(frozen=True, slots=True)
class Region:
    """Binds a region's loop-invariant inputs to values. `operations` leaves out begin and end and
    is in topological order.
    """

    begin: Operation
    operations: tuple[Operation, ...]
    end: Operation
    name: str  # the node of the file that it stands for
    nodes: Mapping[str, str] = field(default_factory=dict)  # operation -> node of the file

    def node_of(self, operation: str) -> str:
        """Returns the node of the file that an operation stands for."""
        return self.nodes.get(operation, self.name)
