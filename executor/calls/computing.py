"""Defines the interface that executes stages on a device, and the counts of its calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from katz_graph.models.row_loras import LoraFactors
from katz_graph.models.stages import Outputs, Stage

AS_DECLARED = "computed as declared"


class StageCall(NamedTuple):
    """Holds a call ready to execute: a stage, the live module, and the inputs."""

    stage: Stage
    module: Any
    given: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Offer:
    """Holds the next call of a request, or two independent calls, bound and ready to execute.
    Requests may share a single call if their keys are equal and not empty.
    """

    calls: tuple[StageCall, ...]
    key: str
    sizes: tuple[int, ...]  # rows of each call
    loras: Hashable  # must be resident in the module
    factors: tuple[LoraFactors | None, ...]  # of the LoRAs that apply to each call's rows only
    what: str  # names the request in an out-of-memory error
    count: Callable[[Mapping[str, int]], None]  # adds to the request's numbers of calls
    # by call: the forms of inputs that last, which `RowStacks` compares once for a request
    forms: tuple[dict[Hashable, Any], ...]

    @property
    def rows(self) -> int:
        """Returns the rows of the first call, which requests may share."""
        return self.sizes[0]


@dataclass(slots=True)
class ComputeUse:
    """Counts stage calls since the worker started."""

    captures: int = 0  # recorded calls
    replays: int = 0  # calls replayed from a recording
    concurrent: int = 0  # calls run concurrently on two streams
    shared: int = 0  # calls with rows of several requests
    shared_rows: int = 0  # of these calls
    lora_rows: int = 0  # calls with LoRAs of some rows instead of merged ones
    # seconds of calls that requests may share and that had a prediction
    predicted_seconds: float = 0.0
    measured_seconds: float = 0.0
    # relative errors of the predictions of the last evaluations: the median, and the error that
    # 95 % did not exceed
    median_error: float | None = None
    p95_error: float | None = None
    drops: int = 0  # times that all recordings were dropped for lack of memory
    bytes: int = 0  # memory held by recordings
    eager: dict[str, int] = field(default_factory=dict)  # other calls, by reason

    @property
    def calls(self) -> dict[str, int]:
        """Returns the numbers of recorded, replayed, concurrent, eager and shared calls."""
        return {
            "recorded": self.captures,
            "replayed": self.replays,
            "beside": self.concurrent,
            "eager": sum(self.eager.values()),
            "shared": self.shared,
            "lora_rows": self.lora_rows,
        }

    def calls_since(self, before: Mapping[str, int]) -> dict[str, int]:
        """Returns the numbers of calls since `before`, an earlier value of `calls`, that grew."""
        return {
            name: count - before[name] for name, count in self.calls.items() if count > before[name]
        }

    def count_eager(self, reason: str) -> None:
        self.eager[reason] = self.eager.get(reason, 0) + 1


class Computing(Protocol):
    """Executes a stage with a live module on inputs, see `katz_graph.models.stages.Compute`."""

    use: ComputeUse

    @property
    def records(self) -> bool:
        """Returns whether calls are recorded by their number of rows."""

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs: ...

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        """Computes one call, or two independent calls."""

    def drop(self) -> None:
        """Frees the memory held for later calls."""

    def forget(self, module: Any) -> None:
        """Invalidates the recordings of an evicted module."""


class Eagerly:
    """Implements `Computing` by running each call eagerly, without recordings."""

    records = False

    def __init__(self) -> None:
        self.use = ComputeUse()

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        self.use.count_eager(AS_DECLARED)
        return stage.computed(module, given)

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        return [self(*call) for call in calls]

    def drop(self) -> None:
        """Does nothing: no memory is held."""

    def forget(self, module: Any) -> None:
        """Does nothing: no state is kept per module."""
