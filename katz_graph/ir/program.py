"""Defines the data structure that every planner pass takes and returns: a sampling program, from
bound region to instruction lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from katz_graph.ir.device import Target, Work
from katz_graph.ir.region import Operation, Previous, Ref, Region
from katz_graph.ir.tree import Tree


class EvaluationPoint(Protocol):
    """One call of the model, known before the run."""

    @property
    def index(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def sigma(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Variant:
    """Describes one kind of evaluation, with every switch decided: operations in topological order,
    and the evaluations of this kind.

    `prediction` and `carried` (slot -> value) are what StepEnd reads.
    """

    name: str
    operations: tuple[Operation, ...]
    prediction: Any
    carried: Mapping[int, Any]
    evaluations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Runs one or several equal operations as one call on one device (several: concatenated along
    the batch).
    """

    operations: tuple[str, ...]
    stage: str
    device: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Segment:
    """Groups a run of calls on one device with nothing arriving, leaving or being patched in
    between: one CUDA graph.

    `reads`: what its calls take that none of them made; `writes`: what of theirs others take.
    `beside`: the numbers of calls that a GPU may carry out beside the one behind them.
    """

    name: str
    device: str
    calls: tuple[Call, ...]
    reads: tuple[Ref | Previous, ...] = ()
    writes: tuple[Ref, ...] = ()
    beside: tuple[int, ...] = ()

    @property
    def turns(self) -> Iterator[tuple[Call, ...]]:
        """Yields the calls in their order: one, or two that may run beside each other."""
        for number, call in enumerate(self.calls):
            if number in self.beside:
                yield call, self.calls[number + 1]
            elif number - 1 not in self.beside:
                yield (call,)


@dataclass(frozen=True, slots=True)
class Instance:
    """An output of an operation as one evaluation made it; evaluation None: before the loop."""

    ref: Ref
    evaluation: int | None


@dataclass(frozen=True, slots=True)
class LateLoras:
    """Names the LoRA files that evaluations may begin without. Of each: the evaluation before which
    the run waits for it, and the operations before the loop that take it, themselves or through
    others.

    The device that owns the sampler says before each evaluation which are there, as a number whose
    bit i stands for file i: all devices change their weights at the same evaluation.
    """

    files: tuple[Any, ...]  # their identities
    waits: tuple[int, ...]
    affects: tuple[tuple[str, ...], ...]

    @property
    def everything(self) -> int:
        """Returns the number that says that all are there."""
        return (1 << len(self.files)) - 1

    def absent(self, present: int) -> tuple[Any, ...]:
        """Returns the files that are not there."""
        return tuple(file for bit, file in enumerate(self.files) if not present >> bit & 1)

    def due(self, evaluation: int | None) -> tuple[Any, ...]:
        """Returns the files that this evaluation may not begin without; None: before the loop."""
        pairs = zip(self.files, self.waits, strict=True)
        return tuple(
            file for file, waits in pairs if evaluation is not None and waits <= evaluation
        )

    def affected(self, changed: int) -> frozenset[str]:
        """Returns the operations before the loop that take one of the files of these bits."""
        return frozenset(
            name for bit, names in enumerate(self.affects) if changed >> bit & 1 for name in names
        )


PRESENT = "loras:present"
"""Names the operation whose value says which late LoRAs are there."""

InstructionKind = Literal[
    "fetch", "weights", "patch", "prepare", "begin", "receive", "run", "send", "advance", "end"
]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One entry of a device's list.

    `fetch` has a LoRA file read, beside all that follows. `weights` says which late LoRAs are there
    from here on, or heeds what was said, and has done again what was done before the loop with
    others. `patch` makes a weight set resident early; `prepare` computes something before the loop;
    `receive` and `send` move an instance (`target`, `output`, `evaluation`) from or to `peer`;
    `run` a segment; `advance` hands the prediction to the sampler, on the device that owns it;
    `begin` and `end` enclose an evaluation on this device, which keeps the instances `keeps` for
    later ones.
    """

    kind: InstructionKind
    target: str  # operation, weight set or segment
    evaluation: int | None = None
    output: int = 0
    peer: str | None = None
    keeps: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicts seconds for the whole request: as planned, with free communication and endless
    devices, and one operation after the other.
    """

    planned: float
    ideal: float
    sequential: float
    period: float  # of the commonest variant's evaluation, once it repeats
    binding: str


@dataclass(frozen=True, slots=True)
class Program:
    """Carries a region on its way to instruction lists. A pass fills the fields after its own name
    and leaves the others.
    """

    region: Region
    schedule: tuple[EvaluationPoint, ...]
    target: Target
    name: str = ""
    before: tuple[Operation, ...] = ()  # hoist: computed once per request, in topological order
    late: LateLoras | None = None  # late
    variants: tuple[Variant, ...] = ()  # variants
    trees: tuple[Tree, ...] = ()  # decompose: one per variant
    work: Mapping[str, Work] = field(default_factory=dict)  # cost: by operation
    # cost: what an operation's measured times are kept under
    keys: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] = ()  # cost: the latent's [B, C, h, w]
    # cost: height and width that each operation works on
    cells: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # cost: length of the text of each operation that has one
    tokens: Mapping[str, int] = field(default_factory=dict)
    # cost: blocks that a GPU computes as their library does, by operation, with the reason
    unprepared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # search: operation of the loop -> device
    placement: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""  # search: the device that advances the sampler
    # search: ControlNet operations whose residuals are one evaluation old
    delayed: tuple[str, ...] = ()
    # search: per variant, in topological order; a device's calls in its order
    calls: tuple[tuple[Call, ...], ...] = ()
    # search: an operation that several devices need stands in a call of each
    before_calls: tuple[Call, ...] = ()
    # search: what was considered -> seconds
    alternatives: Mapping[str, float] = field(default_factory=dict)
    chosen: str = ""  # search: which of them this is
    notes: tuple[str, ...] = ()  # search: why it is so, in sentences
    segments: tuple[tuple[Segment, ...], ...] = ()  # segment: per variant
    # emit: per device
    instructions: Mapping[str, tuple[Instruction, ...]] = field(default_factory=dict)
    prediction: Prediction | None = None  # emit
