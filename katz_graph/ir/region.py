"""Describes a step region: the part of a graph that runs once per evaluation.

Loop-carried values are slots, as in MLIR's `scf.for`: `next_i` of StepEnd becomes `previous_i` of
StepBegin in the next evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SLOTS = 8  # previous_1 to previous_8


BEGIN, END = "step_begin", "step_end"


SWITCH = "switch"


CROP = "StepCrop"  # the node type after which operations see a part of the latent


@dataclass(frozen=True, slots=True)
class Ref:
    """Output number `output` of an operation of the same evaluation."""

    operation: str
    output: int = 0


@dataclass(frozen=True, slots=True)
class Previous:
    """The loop-carried value of slot 1 to 8, from the previous evaluation."""

    slot: int


@dataclass(frozen=True, slots=True)
class Operation:
    """Represents one node of a region, or a computation that a pass added: runs `stage` on values,
    references and slots.
    """

    id: str
    stage: str
    type: str
    inputs: Mapping[str, Any]
    required: tuple[str, ...] = ()  # inputs that must not be None

    def references(self) -> Iterator[tuple[str, Ref]]:
        return ((name, value) for name, value in self.inputs.items() if isinstance(value, Ref))

    def slots(self) -> Iterator[int]:
        return (value.slot for value in self.inputs.values() if isinstance(value, Previous))


def local_name(operation: str) -> str:
    """Returns an operation's id without that of the workflow's node which expanded to it: the same
    in all workflows.
    """
    return operation.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Part:
    """A rectangle of a latent, in cells."""

    top: int
    left: int
    height: int
    width: int

    @property
    def cells(self) -> tuple[int, int]:
        return self.height, self.width


@dataclass(frozen=True, slots=True)
class SimilarStart:
    """Says from which picture a request begins, and how much that saves; or why it begins from
    none.
    """

    picture: str = ""  # id
    similarity: float = 0.0  # of both prompts: cosine similarity of their encodings
    saved: int = 0  # evaluations
    evaluations: int = 0  # of the full request
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Region:
    """Binds a region's loop-invariant inputs to values. `operations` are in topological order,
    without begin and end.
    """

    begin: Operation
    operations: tuple[Operation, ...]
    end: Operation
    name: str  # the workflow's node that represents this region
    nodes: Mapping[str, str] = field(default_factory=dict)  # operation -> workflow's node
    template: Any = None  # the `EditTemplate` of its model, which its recipes are without
    similar: SimilarStart | None = None  # None: it did not ask for one

    def node_of(self, operation: str) -> str:
        """Returns the workflow's node that represents an operation."""
        return self.nodes.get(operation, self.name)
