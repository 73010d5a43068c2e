"""Defines the data structure that every planner pass takes and returns: a sampling program, from
bound region to instruction lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from katz_graph.ir.device import Target, Work
from katz_graph.ir.region import Operation, Previous, Ref, Region
from katz_graph.ir.reuse import Reuse, TemplateUse
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
    """Describes one kind of evaluation, with every switch decided: its operations in topological
    order, and the evaluations of this kind.

    StepEnd reads `prediction` and `carried` (slot -> value).
    """

    name: str
    operations: tuple[Operation, ...]
    prediction: Any
    carried: Mapping[int, Any]
    evaluations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """Runs one operation, or several equal operations concatenated along the batch dimension, on
    one device.
    """

    operations: tuple[str, ...]
    stage: str
    device: str
    seconds: float
    shares: str = ""  # equal for calls that requests may share (`sharing`); empty: not shared
    computed: float = 1.0  # reuse: the share of its computation that cached layers leave
    waits: float = 0.0  # reuse: of `seconds`, for the loads of cached layers in steady state


@dataclass(frozen=True, slots=True)
class Segment:
    """Groups consecutive calls on one device as one CUDA graph, without receiving, sending or
    patching in between.
    """

    name: str
    device: str
    calls: tuple[Call, ...]
    reads: tuple[Ref | Previous, ...] = ()  # inputs from outside the segment
    writes: tuple[Ref, ...] = ()  # outputs that operations outside the segment read
    # indices of calls that a GPU may run concurrently with the next
    concurrent: tuple[int, ...] = ()

    @property
    def turns(self) -> Iterator[tuple[Call, ...]]:
        """Yields the calls in order, alone or in concurrent pairs."""
        for number, call in enumerate(self.calls):
            if number in self.concurrent:
                yield call, self.calls[number + 1]
            elif number - 1 not in self.concurrent:
                yield (call,)


@dataclass(frozen=True, slots=True)
class Instance:
    """An operation's output in one evaluation. Evaluation None: computed before the loop."""

    ref: Ref
    evaluation: int | None


@dataclass(frozen=True, slots=True)
class DeferredLoras:
    """Lists the deferred LoRA files, which early evaluations may run without.

    Before each evaluation the sampler's device broadcasts a mask: bit i is set if file i is
    available. All devices therefore change their weights at the same evaluation.
    """

    files: tuple[Any, ...]  # identities
    waits: tuple[int, ...]  # for each file: the first evaluation that requires it
    # for each file: operations before the loop that use it, directly or through their inputs
    affects: tuple[tuple[str, ...], ...]

    @property
    def everything(self) -> int:
        """Returns the mask of all files."""
        return (1 << len(self.files)) - 1

    def absent(self, present: int) -> tuple[Any, ...]:
        """Returns the files whose bit is not set."""
        return tuple(file for bit, file in enumerate(self.files) if not present >> bit & 1)

    def due(self, evaluation: int | None) -> tuple[Any, ...]:
        """Returns the files that this evaluation requires; none before the loop (None)."""
        pairs = zip(self.files, self.waits, strict=True)
        return tuple(
            file for file, waits in pairs if evaluation is not None and waits <= evaluation
        )

    def affected(self, changed: int) -> frozenset[str]:
        """Returns the operations before the loop that use one of the files in a mask."""
        return frozenset(
            name for bit, names in enumerate(self.affects) if changed >> bit & 1 for name in names
        )


PRESENT = "loras:present"
"""Names the operation whose value is the mask of available deferred LoRAs."""

InstructionKind = Literal[
    "fetch",
    "load",
    "weights",
    "patch",
    "prepare",
    "begin",
    "receive",
    "run",
    "send",
    "advance",
    "end",
]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One entry of a device's list.

    - `fetch` starts reading a LoRA file, concurrently with all later instructions.
    - `load` starts reading the template's activations of a segment in an evaluation, concurrently
      with all later instructions.
    - `weights` sets the mask of available deferred LoRAs, which the sampler's device determines and
      the others receive. Recomputes the operations before the loop whose LoRAs changed.
    - `patch` makes a weight set resident before its calls.
    - `prepare` computes an operation before the loop.
    - `receive` and `send` move an instance (`target`, `output`, `evaluation`) from or to `peer`.
    - `run` executes a segment.
    - `advance` passes the prediction to the sampler, on the sampler's device.
    - `begin` and `end` enclose an evaluation on this device. `end` retains the instances `keeps`
      for later evaluations and releases all others.
    """

    kind: InstructionKind
    target: str  # operation, weight set or segment
    evaluation: int | None = None
    output: int = 0
    peer: str | None = None
    keeps: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicts the seconds of the whole request: as planned, with free communication and unlimited
    devices, and one operation after the other.
    """

    planned: float
    ideal: float
    sequential: float
    period: float  # of an evaluation of the commonest variant, in steady state
    binding: str
    # from the prediction before, or the start, to that of each evaluation
    evaluations: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """Describes consecutive evaluations of one kind: their number, the rows of the largest call,
    and the seconds of one alone. Requests may share evaluations of equal keys, which then take
    `seconds`, by the rows of all requests (ROW_BUCKETS). Without a key they share none.
    """

    number: int
    rows: int
    alone: float
    key: str = ""
    seconds: tuple[float, ...] = ()


def evaluation_key(shares: Iterable[str]) -> str:
    """Returns the key of an evaluation from the share keys of its calls."""
    return "+".join(sorted({*shares} - {""}))


@dataclass(frozen=True, slots=True)
class Program:
    """Carries a region through the passes to instruction lists. Each pass sets the fields marked
    with its name.
    """

    region: Region
    schedule: tuple[EvaluationPoint, ...]
    target: Target
    name: str = ""
    before: tuple[Operation, ...] = ()  # hoist: computed once per request, in topological order
    deferred_loras: DeferredLoras | None = None  # late
    variants: tuple[Variant, ...] = ()  # variants
    trees: tuple[Tree, ...] = ()  # decompose: one per variant
    work: Mapping[str, Work] = field(default_factory=dict)  # cost: by operation
    # cost: by operation, the key of its measured times
    keys: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, ...] = ()  # cost: the latent's [B, C, h, w], or [B, C, F, h, w] of frames
    # cost: by operation, the rows of its call: pictures of the latent, texts of a prompt
    rows: Mapping[str, int] = field(default_factory=dict)
    # cost: by operation before the loop, bytes of its output until the request ends
    held: Mapping[str, float] = field(default_factory=dict)
    # cost: latent height and width by operation
    cells: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    # cost: text length by operation
    tokens: Mapping[str, int] = field(default_factory=dict)
    # cost: by operation, blocks that run their library's forward on a GPU, with the reason
    unprepared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # search: operation of the loop -> device
    placement: Mapping[str, str] = field(default_factory=dict)
    sampler_device: str = ""  # search: the device that samples
    # search: stale ControlNet operations, read one evaluation late
    stale: tuple[str, ...] = ()
    # search: per variant, in topological order, in which each device runs its calls
    calls: tuple[tuple[Call, ...], ...] = ()
    # search: an operation that several devices need has a call on each
    before_calls: tuple[Call, ...] = ()
    # search: considered plan -> seconds
    alternatives: Mapping[str, float] = field(default_factory=dict)
    chosen: str = ""  # search: the key of this plan in `alternatives`
    # search: seconds of the fastest plan on one device, relative to this plan; None: not considered
    alone: float | None = None
    notes: tuple[str, ...] = ()  # search: reasons for the choice, in sentences
    template: TemplateUse | None = None  # reuse: None if no layer reads it
    # reuse: operation of the loop -> its layers that read the template
    reused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reuse: Reuse | None = None  # reuse: None without a template
    segments: tuple[tuple[Segment, ...], ...] = ()  # segment: per variant
    # emit: per device
    instructions: Mapping[str, tuple[Instruction, ...]] = field(default_factory=dict)
    prediction: Prediction | None = None  # emit
    runs: tuple[EvaluationRun, ...] = ()  # emit: of all evaluations

    def shape_at(self, operation: str) -> tuple[int, ...]:
        """Returns the shape of an operation's part of the latent."""
        return *self.shape[:-2], *self.cells.get(operation, self.shape[-2:])


def reads_template(program: Program, evaluation: int) -> bool:
    """Returns whether layers read the template in an evaluation, if any do."""
    return program.template is None or program.template.numbers[evaluation] >= 0


class Instances:
    """Resolves a value of an evaluation to its instance: follows loop-carried slots back to the
    evaluation that computed the value. The simulator, `emit` and workers share this code.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._before = frozenset(operation.id for operation in program.before)
        self._variants = {
            index: variant for variant in program.variants for index in variant.evaluations
        }

    def variant(self, evaluation: int) -> Variant:
        return self._variants[evaluation]

    def of(self, value: Any, evaluation: int) -> Instance | Any:
        """Returns the instance of `value` in this evaluation. Returns a constant as it is,
        including a slot's initial value.
        """
        while isinstance(value, Previous):
            evaluation -= 1
            if evaluation < 0:
                return self._program.region.begin.inputs[f"initial_{value.slot}"]
            value = self._variants[evaluation].carried[value.slot]
        if not isinstance(value, Ref):
            return value
        return Instance(value, None if value.operation in self._before else evaluation)
