"""Defines the events of a run: graph run, engines, workers and packs report them to listeners.

Node ids are those of the graph that runs; `display` is the node of the file that a node is shown
as: itself, or the one that expanded to it. A field `kind` tells events apart where they are told to
clients as data (`web/events.py`). Never imports torch.
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
    """A node began to run."""

    node: str
    display: str
    type: str
    kind: Literal["node_started"] = "node_started"


@dataclass(frozen=True, slots=True)
class NodeDone:
    """A node has its result; `why` tells why it ran or was `cached`. `ui` is for editors."""

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
    """A node is done, but gave nothing but blockers; `why` tells the reason."""


@dataclass(frozen=True, slots=True)
class NodeFailed:
    """A node has no result; `why` tells why it ran."""

    node: str
    display: str
    type: str
    why: str
    error: KatzError


@dataclass(frozen=True, slots=True)
class Progress:
    """A node is done with `value` of `maximum`: `evaluations` of a sampler, or what a pack counts.

    A server fills in `display`.
    """

    node: str
    display: str = field(default="", kw_only=True)
    value: int
    maximum: int
    evaluations: bool = False
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True, eq=False)
class Previewed:
    """A node shows its unfinished picture, uint8 [h, w, 3]; `picture.preview` encodes it."""

    node: str
    picture: Tensor


@dataclass(frozen=True, slots=True)
class Planned:
    """A sampler was compiled."""

    node: str
    program: Program


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sampler is done: seconds on the device that advanced it, how many attempts it took, by
    LoRA that it began without the evaluation from which on it was there, and how many calls of
    stages were recorded, replayed, beside others, and eager, on all devices.
    """

    node: str
    program: Program
    load: float
    prepare: float
    denoise: float
    attempts: int = 1
    arrivals: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reused:
    """A node took a kept result that inputs alone do not decide."""

    node: str
    provenance: Provenance


SpanKind = Literal["segment", "send", "patch", "prepare", "load", "stage", "node"]


@dataclass(frozen=True, slots=True)
class Span:
    """A device worked for a while, on what `name` tells people.

    `kind` says what it did, `target` on what: a segment, an operation (`send`, `prepare`), a weight
    set (`patch`), a stage that is no sampler's, a type of node; `peer` is who was sent something.
    `start` is on the clock of `time.perf_counter`; clients read it in seconds since the job
    started. On a GPU times are its own, not those of the launch.
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
    """Devices worked for a node: all that was not told before."""

    node: str
    segments: tuple[Span, ...]
    kind: Literal["timeline"] = "timeline"


@dataclass(frozen=True, slots=True)
class StageDone:
    """A device did a stage (as `--place` calls it) for a node that is no sampler."""

    stage: str
    span: Span


@dataclass(frozen=True, slots=True)
class Warned:
    """A line for people, which stops nothing."""

    message: str
    kind: Literal["warned"] = "warned"


@dataclass(frozen=True, slots=True)
class PackMessage:
    """A pack sends its code in the editor a message: to `client`, or to all who watch the run."""

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
