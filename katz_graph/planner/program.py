"""The one data structure that every planner pass takes and returns: a sampling program, from bound region to instruction lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from katz_graph.planner.region import Operation, Region


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


@dataclass(frozen=True, slots=True)
class Device:
    """A device as the planner sees it. Rates are measured (`katz_graph.executor.calibrate`) or given."""

    name: str
    flops_per_second: float
    bytes_per_second: float
    seconds_per_kernel: float = 0.0
    value_bytes: int = 4  # of the number format that it computes in

    def seconds(self, work: Work) -> float:
        """Roofline: the larger of arithmetic and memory time, plus the start of each kernel (Williams et al. 2009)."""
        arithmetic = work.flops / self.flops_per_second
        memory = (work.weight_bytes + work.activation_bytes) / self.bytes_per_second
        return max(arithmetic, memory) + work.kernels * self.seconds_per_kernel


@dataclass(frozen=True, slots=True)
class Call:
    """One or several equal operations run as one call on one device (several: concatenated along the batch)."""

    operations: tuple[str, ...]
    stage: str
    device: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of calls on one device with nothing arriving or leaving in between: one CUDA graph."""

    name: str
    device: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One entry of a device's list: `prepare`, `patch` (make a weight set resident), `run` or `advance`."""

    kind: str
    target: str  # operation, weight set or segment
    evaluation: int | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds for the whole request: as planned, with free communication and endless devices, and one operation after the other."""

    planned: float
    ideal: float
    sequential: float
    period: float  # of the commonest variant's evaluation
    binding: str


@dataclass(frozen=True, slots=True)
class Program:
    """A region on its way to instruction lists. A pass fills the fields after its own name and leaves the others."""

    region: Region
    schedule: tuple[EvaluationPoint, ...]
    devices: tuple[Device, ...]
    name: str = ""
    before: tuple[Operation, ...] = ()  # hoist: computed once per request, in topological order
    variants: tuple[Variant, ...] = ()  # variants
    trees: tuple[Any, ...] = ()  # decompose: one Tree per variant
    work: Mapping[str, Work] = field(default_factory=dict)  # cost: by operation
    shape: tuple[int, ...] = ()  # cost: the latent's [B, C, h, w]
    cells: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # cost: height and width that each operation works on
    tokens: Mapping[str, int] = field(default_factory=dict)  # cost: length of the text of each operation that has one
    calls: tuple[tuple[Call, ...], ...] = ()  # search: per variant
    before_calls: tuple[Call, ...] = ()  # search
    alternatives: Mapping[str, float] = field(default_factory=dict)  # search: what was considered -> seconds
    segments: tuple[tuple[Segment, ...], ...] = ()  # segment: per variant
    instructions: Mapping[str, tuple[Instruction, ...]] = field(default_factory=dict)  # emit: per device
    prediction: Prediction | None = None  # emit
