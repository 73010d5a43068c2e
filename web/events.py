"""What happens to a job, in words that the runner, the job queue and the channels to clients share. Knows nothing of sockets and formats.

Node ids are those of the graph that runs; `display` is the node of the submitted workflow that a node is shown as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

EndStatus = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed: one line for people, and the node that it failed in. `kind`: InputError, RunError, OutOfMemory, WorkerLost.

    `display` is the node of the prompt that a node of an expansion is shown as; empty where the job as a whole failed.
    """

    kind: str
    message: str
    node: str = ""
    node_type: str = ""
    display: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    job: str
    at: float  # seconds since the epoch, as all times called `at`
    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class Cached:
    """Nodes whose results were there before the first one ran, or later on."""

    job: str
    nodes: tuple[str, ...]
    at: float
    kind: Literal["cached"] = "cached"


@dataclass(frozen=True, slots=True)
class NodeStarted:
    job: str
    node: str
    display: str
    type: str
    kind: Literal["node_started"] = "node_started"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a node is: `evaluations` of a sampler, or what a pack counts."""

    job: str
    node: str
    display: str
    value: int
    maximum: int
    evaluations: bool = False
    kind: Literal["progress"] = "progress"


@dataclass(frozen=True, slots=True)
class NodeDone:
    """A node has its result. `ui`: what it has for editors (files by name as `/view` serves them, texts); `why` it ran or was cached."""

    job: str
    node: str
    display: str
    type: str
    cached: bool = False
    seconds: float = 0.0
    why: str = ""
    ui: Mapping[str, Sequence[Any]] | None = None
    kind: Literal["node_done"] = "node_done"


@dataclass(frozen=True, slots=True)
class Previewed:
    """The running picture, for its owner's eyes. The newest replaces older ones that were not sent yet, unless it is `lasting`: a picture
    that a node sends instead of saving it."""

    job: str
    node: str
    display: str
    image: bytes
    media_type: str = "image/jpeg"
    lasting: bool = False
    kind: Literal["previewed"] = "previewed"


@dataclass(frozen=True, slots=True)
class PlanMade:
    """A sampler was compiled: what `katz plan --json` prints."""

    job: str
    node: str
    plan: Mapping[str, Any]
    kind: Literal["plan_made"] = "plan_made"


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of work on a device; `start` is in seconds since the job started."""

    device: str
    name: str
    start: float
    seconds: float
    evaluation: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What devices did for a node."""

    job: str
    node: str
    segments: tuple[Segment, ...]
    kind: Literal["timeline"] = "timeline"


@dataclass(frozen=True, slots=True)
class PackMessage:
    """A message of a pack for its own code in the editor. `client` names who it is for; without it, who submitted the job."""

    job: str
    type: str
    data: Any
    client: str | None = None
    kind: Literal["pack_message"] = "pack_message"


@dataclass(frozen=True, slots=True)
class Warned:
    job: str
    message: str
    kind: Literal["warned"] = "warned"


@dataclass(frozen=True, slots=True)
class Wrote:
    """A finished file, by its path relative to the folder that `place` names."""

    job: str
    path: str
    place: Literal["output", "temp"]
    kind: Literal["wrote"] = "wrote"


@dataclass(frozen=True, slots=True)
class Ended:
    """A job's last event.

    `outputs`: what output nodes have for editors, by node. `meta`: for each of them node_id, display_node, parent_node, real_node_id.
    `executed`: nodes that ran or were cached. `seconds`: total, load, prepare, denoise, vae. `predicted`: seconds of sampling as planned.
    `cached`: the nodes that `Cached` told of.
    """

    job: str
    status: EndStatus
    at: float
    error: JobError | None = None
    outputs: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    meta: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    executed: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    predicted: float | None = None
    approximations: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    kind: Literal["ended"] = "ended"


JobEvent = Started | Cached | NodeStarted | Progress | NodeDone | Previewed | PlanMade | Timeline | PackMessage | Warned | Wrote | Ended

JOB_EVENT: TypeAdapter[JobEvent] = TypeAdapter(Annotated[JobEvent, Field(discriminator="kind")])
"""Events to and from plain data."""
