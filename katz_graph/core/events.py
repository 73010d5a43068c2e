"""Defines the events that graph runs, engines, workers and packs report to listeners.

`node` is an id in the running graph. `display` is the id in the submitted file: the node itself, or
the node that expanded to it. `kind` tags events that clients receive as JSON (`web/events.py`).
Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from katz_graph.core.errors import KatzError
    from katz_graph.ir.program import Program
    from katz_graph.ir.provenance import Provenance


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """Reports that a node started."""

    node: str
    display: str
    type: str
    kind: Literal["node_started"] = "node_started"


@dataclass(frozen=True, slots=True)
class NodeDone:
    """Reports a node's result. `why`: why it ran or was `cached`. `ui`: data for editors."""

    node: str
    display: str
    type: str
    cached: bool = False
    seconds: float = 0.0
    why: str = ""
    ui: Mapping[str, Sequence[Any]] | None = None
    kind: Literal["node_done"] = "node_done"


@dataclass(frozen=True, slots=True)
class NodeBlocked(NodeDone):
    """Reports that a node finished but returned only execution blockers. `why`: the reason."""


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """Reports that a node failed. `why`: why it ran."""

    node: str
    display: str
    type: str
    why: str
    error: KatzError


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports that a node has done `value` of `maximum` units: `evaluations` of a sampler, or units
    of a pack. Servers set `display`.
    """

    node: str
    display: str = field(default="", kw_only=True)
    value: int
    maximum: int
    evaluations: bool = False
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, eq=False)
class Previewed:
    """Carries a preview of a node's unfinished picture, uint8 [h, w, 3]; `picture.preview` encodes
    it.
    """

    node: str
    picture: Tensor


@dataclass(frozen=True, slots=True)
class Planned:
    """Reports that a sampler was compiled."""

    node: str
    program: Program


@dataclass(frozen=True, slots=True)
class Sampled:
    """Reports that a sampler finished. Seconds are those of the device that advanced it."""

    node: str
    program: Program
    load: float
    prepare: float
    denoise: float
    attempts: int = 1
    """Number of attempts."""
    arrivals: Mapping[str, int] = field(default_factory=dict)
    """Maps each deferred LoRA to the first evaluation that included it."""
    calls: Mapping[str, int] = field(default_factory=dict)
    """Number of stage calls on all devices: recorded, replayed, concurrent, eager."""
    activations: Mapping[str, float] = field(default_factory=dict)
    """What all devices read from a template: bytes, seconds, and seconds that evaluations waited;
    empty without a template.
    """


@dataclass(frozen=True, slots=True)
class Reused:
    """Reports the reuse of a cached result that depends on more than its inputs."""

    node: str
    provenance: Provenance


SpanKind = Literal["segment", "send", "patch", "prepare", "load", "stage", "node"]


@dataclass(frozen=True, slots=True)
class Span:
    """Reports that a device was busy for a time. `name`: label for users.

    `kind` is the kind of work. `target` is its object: a segment, an operation (`send`, `prepare`),
    a weight set (`patch`), a stage outside samplers or a node type. `peer` is the receiver of a
    transfer. `start` uses the clock of `time.perf_counter`; clients get seconds since the start of
    the job. GPU times are measured on the GPU, not at launch.
    """

    device: str
    name: str
    start: float
    seconds: float
    evaluation: int | None = None
    kind: SpanKind = "segment"
    target: str = ""
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """Reports the spans of a node since its last report."""

    node: str
    segments: tuple[Span, ...]
    kind: Literal["timeline"] = "timeline"


@dataclass(frozen=True, slots=True)
class StageDone:
    """Reports that a device ran a stage (by its `--place` name) for a node that is no sampler."""

    stage: str
    span: Span


@dataclass(frozen=True, slots=True)
class Warned:
    """Carries a warning for users; the run continues."""

    message: str
    kind: Literal["warned"] = "warned"


@dataclass(frozen=True, slots=True)
class PackMessage:
    """Carries a message from a pack to its editor code: to `client`, or to all clients that watch
    the run.
    """

    type: str
    data: Any
    client: str | None = None
    kind: Literal["pack_message"] = "pack_message"


Event = (
    NodeStarted
    | NodeDone
    | NodeFailed
    | Progress
    | Previewed
    | Planned
    | Sampled
    | Reused
    | Timeline
    | StageDone
    | Warned
    | PackMessage
)
Listener = Callable[[Event], None]
