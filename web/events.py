"""Defines the events that clients receive for a job: events of its run, and events that exist only
for jobs.

An event is serialized as a map of `job`, the event's fields and `kind`. The runner, the native
channel and the job store use this form. Must not know sockets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    WrapSerializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from katz_graph.core.events import NodeDone, NodeStarted, PackMessage, Progress, Timeline, Warned
from katz_graph.node.ui_results import Place
from katz_graph.planner.report.document import PlanData

EndStatus = Literal["completed", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class JobError:
    """Describes a job's failure: one line for users, and the failed node. `kind`: InputError,
    RunError, OutOfMemory, WorkerLost.

    `display` is the prompt's node that expanded to the failed node, if any; empty if the whole job
    failed.
    """

    kind: str
    message: str
    node: str = ""
    node_type: str = ""
    display: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """Reports that a job has started."""

    at: float  # seconds since the epoch, like all fields named `at`
    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class Cached:
    """Reports nodes whose results were cached, before the first node runs or later."""

    nodes: tuple[str, ...]
    at: float
    kind: Literal["cached"] = "cached"


@dataclass(frozen=True, slots=True)
class EncodedPicture:
    """Carries a node's preview (`Previewed`), or a picture that the node sends instead of saving it
    (`lasting`).

    A newer picture replaces unsent previews.
    """

    node: str
    display: str
    image: bytes
    media_type: str = "image/jpeg"
    lasting: bool = False
    kind: Literal["previewed"] = "previewed"


@dataclass(frozen=True, slots=True)
class PlanMade:
    """Carries the compiled program of a sampler (`Planned`) in the form that `katz plan --json`
    prints.
    """

    node: str
    plan: PlanData
    kind: Literal["plan_made"] = "plan_made"


@dataclass(frozen=True, slots=True)
class Wrote:
    """Reports a finished file. `path` is relative to the folder that `place` names."""

    path: str
    place: Place
    kind: Literal["wrote"] = "wrote"


def _is_none(value: object) -> bool:
    return value is None


@dataclass(frozen=True, slots=True)
class JobNode:
    """Names a node that ran. `display` is the prompt's node that is shown for it."""

    node: str
    node_type: str
    display: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Ends a job; no event follows."""

    status: EndStatus
    at: float
    error: JobError | None = None
    # editor results of output nodes, by node
    outputs: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    # for each node of `outputs`: node_id, display_node, parent_node, real_node_id
    meta: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    executed: tuple[str, ...] = ()  # nodes that ran or were cached
    seconds: Mapping[str, float] = field(default_factory=dict)  # total, load, prepare, denoise, vae
    predicted: float | None = None  # seconds of sampling as planned
    approximations: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()  # the nodes that `Cached` named
    # the running node when the job was cancelled
    interrupted: Annotated[JobNode | None, Field(exclude_if=_is_none)] = None
    kind: Literal["ended"] = "ended"


ClientEvent = (
    Started
    | Cached
    | NodeStarted
    | Progress
    | NodeDone
    | EncodedPicture
    | PlanMade
    | Timeline
    | PackMessage
    | Warned
    | Wrote
    | Ended
)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Pairs an event with the id of its job."""

    job: str
    event: Annotated[ClientEvent, Field(discriminator="kind")]


def _nested(data: Any) -> Any:
    return {"job": data.get("job"), "event": data} if isinstance(data, Mapping) else data


def _flat(reported: JobEvent, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
    data = dump(reported)
    return {"job": data["job"], **data["event"]}


class _Flat:
    """Generates the schema of serialized events: the fields of one of these classes, and `job`."""

    def __init__(self, *kinds: type[Any]) -> None:
        self._kinds = kinds

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        job = {"type": "object", "properties": {"job": {"type": "string"}}, "required": ["job"]}
        events = (handler(TypeAdapter(kind).core_schema) for kind in self._kinds)
        return {"anyOf": [{"allOf": [event, job]} for event in events]}


_DATA = BeforeValidator(_nested), WrapSerializer(_flat)
EventData = Annotated[JobEvent, *_DATA, _Flat(*get_args(ClientEvent))]
EndedData = Annotated[JobEvent, *_DATA, _Flat(Ended)]
JOB_EVENT: TypeAdapter[JobEvent] = TypeAdapter(EventData)
"""Validates and serializes events."""
