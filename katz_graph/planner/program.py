"""The one data structure that every planner pass takes and returns: a sampling program, from bound region to instruction lists."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from katz_graph.devices import DTYPES
from katz_graph.planner.region import Operation, Previous, Ref, Region


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
    """What one kind of evaluation does, with every switch decided: operations in topological order, and which evaluations are of this kind.

    `prediction` and `carried` (slot -> value) are what StepEnd reads.
    """

    name: str
    operations: tuple[Operation, ...]
    prediction: Any
    carried: Mapping[int, Any]
    evaluations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What one operation costs, free of any device: floating-point operations (a multiply-add is two), bytes, and kernels started."""

    flops: float = 0.0
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0
    output_bytes: float = 0.0
    kernels: float = 0.0

    def batched(self, others: int) -> Work:
        """The work of `others` equal operations in one call: weights are read once."""
        return Work(self.flops * others, self.weight_bytes, self.activation_bytes * others, self.output_bytes * others, self.kernels)


CostKey = tuple[str, int, bool]
"""What was measured: an operation's key (`Program.keys`), how many equal ones in one call, and whether the host's other devices worked."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as the planner sees it. Rates are measured (`katz_graph.executor.calibrate`) or given.

    `name` is what plans and people call it, `torch_name` what torch calls it in the process that computes there. `contention`: how many
    times as long arithmetic takes while the other devices of its host work too, `memory_contention` the same of memory traffic (None: as
    arithmetic). `measured`: seconds of single calls. `bus_bytes_per_second`: from the host's memory to its own; inf: it is the same.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    seconds_per_kernel: float = 0.0
    dtype: str = "float32"  # the number format that it computes in
    memory_bytes: float = math.inf
    host: str = ""
    contention: float = 1.0
    memory_contention: float | None = None
    measured: Mapping[CostKey, float] = field(default_factory=dict)
    torch_name: str = "cpu"
    bus_bytes_per_second: float = math.inf

    @property
    def value_bytes(self) -> int:
        return DTYPES[self.dtype]

    def seconds(self, work: Work, busy: bool = False) -> float:
        """Roofline: the larger of arithmetic and memory time, plus the start of each kernel (Williams et al. 2009)."""
        slower = self.contention if busy else 1.0
        slower_memory = slower if self.memory_contention is None or not busy else self.memory_contention
        arithmetic = work.flops / self.flops_per_second * slower
        memory = (work.weight_bytes + work.activation_bytes) / self.bytes_per_second * slower_memory
        return max(arithmetic, memory) + work.kernels * self.seconds_per_kernel

    def cost(self, key: str, members: int, work: Work, busy: bool = False) -> float:
        """Seconds of `members` equal operations in one call, `work` being that of one.

        As measured; else what was measured of the same operations otherwise, in the ratio that the roofline says; else the roofline.
        """
        if (key, members, busy) in self.measured:
            return self.measured[key, members, busy]
        counted = work.flops > 0 or work.activation_bytes > 0
        work = work if counted else Work(flops=1.0)
        predicted = self.seconds(work.batched(members), busy)
        for others, was_busy in ((members, not busy), (1, busy), (1, not busy), (2, busy), (2, not busy)):
            if (key, others, was_busy) in self.measured:
                return self.measured[key, others, was_busy] * predicted / self.seconds(work.batched(others), was_busy)
        return predicted if counted else 0.0


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two devices: bytes a second, and seconds until the first byte is there."""

    bytes_per_second: float
    latency: float = 0.0

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Call:
    """One or several equal operations run as one call on one device (several: concatenated along the batch)."""

    operations: tuple[str, ...]
    stage: str
    device: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of calls on one device with nothing arriving, leaving or being patched in between: one CUDA graph.

    `reads`: what its calls take that none of them made; `writes`: what of theirs others take.
    """

    name: str
    device: str
    calls: tuple[Call, ...]
    reads: tuple[Ref | Previous, ...] = ()
    writes: tuple[Ref, ...] = ()


@dataclass(frozen=True, slots=True)
class Instance:
    """An output of an operation as one evaluation made it; evaluation None: before the loop."""

    ref: Ref
    evaluation: int | None


InstructionKind = Literal["patch", "prepare", "begin", "receive", "run", "send", "advance", "end"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One entry of a device's list.

    `patch` makes a weight set resident; `prepare` computes something once; `receive` and `send` move an instance (`target`, `output`,
    `evaluation`) from or to `peer`; `run` a segment; `advance` hands the prediction to the sampler, on the device that owns it; `begin`
    and `end` enclose an evaluation on this device, which keeps the instances `keeps` for later ones.
    """

    kind: InstructionKind
    target: str  # operation, weight set or segment
    evaluation: int | None = None
    output: int = 0
    peer: str | None = None
    keeps: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds for the whole request: as planned, with free communication and endless devices, and one operation after the other."""

    planned: float
    ideal: float
    sequential: float
    period: float  # of the commonest variant's evaluation, once it repeats
    binding: str


@dataclass(frozen=True, slots=True)
class Program:
    """A region on its way to instruction lists. A pass fills the fields after its own name and leaves the others."""

    region: Region
    schedule: tuple[EvaluationPoint, ...]
    devices: tuple[Device, ...]
    name: str = ""
    links: Mapping[tuple[str, str], Link] = field(default_factory=dict)  # given: by source and target device; none is free
    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # given: stage, or one operation -> devices that it may run on
    allowed: frozenset[str] = frozenset()  # given: approximations by name
    before: tuple[Operation, ...] = ()  # hoist: computed once per request, in topological order
    variants: tuple[Variant, ...] = ()  # variants
    trees: tuple[Any, ...] = ()  # decompose: one Tree per variant
    work: Mapping[str, Work] = field(default_factory=dict)  # cost: by operation
    keys: Mapping[str, str] = field(default_factory=dict)  # cost: what an operation's measured times are kept under
    shape: tuple[int, ...] = ()  # cost: the latent's [B, C, h, w]
    cells: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # cost: height and width that each operation works on
    tokens: Mapping[str, int] = field(default_factory=dict)  # cost: length of the text of each operation that has one
    placement: Mapping[str, str] = field(default_factory=dict)  # search: operation of the loop -> device
    owner: str = ""  # search: the device that advances the sampler
    delayed: tuple[str, ...] = ()  # search: ControlNet operations whose residuals are one evaluation old
    calls: tuple[tuple[Call, ...], ...] = ()  # search: per variant, in topological order; a device's calls in its order
    before_calls: tuple[Call, ...] = ()  # search: an operation that several devices need stands in a call of each
    alternatives: Mapping[str, float] = field(default_factory=dict)  # search: what was considered -> seconds
    notes: tuple[str, ...] = ()  # search: why it is so, in sentences
    segments: tuple[tuple[Segment, ...], ...] = ()  # segment: per variant
    instructions: Mapping[str, tuple[Instruction, ...]] = field(default_factory=dict)  # emit: per device
    prediction: Prediction | None = None  # emit

    def link(self, source: str, target: str) -> Link | None:
        """None: nothing to pay, as on one device."""
        return None if source == target else self.links.get((source, target))

    def device(self, name: str) -> Device:
        return next(device for device in self.devices if device.name == name)
