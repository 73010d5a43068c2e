"""Defines the events that clients get for a job: those of its run, and those that only jobs have.

As data, an event is a map of `job`, its own fields and `kind`. It goes so from the runner to the
server, over the native channel and into the job store. Must not know sockets.
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
    """Says why a job failed: one line for people, and the node that failed. `kind`: InputError,
    RunError, OutOfMemory, WorkerLost.

    `display` is the prompt's node that stands for a node of an expansion; empty where the job as a
    whole failed.
    """

    kind: str
    message: str
    node: str = ""
    node_type: str = ""
    display: str = ""


@dataclass(frozen=True, slots=True)
class Started:
    """A job began to run."""

    at: float  # seconds since the epoch, as all times called `at`
    kind: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class Cached:
    """Nodes had their results before the first one ran, or later on."""

    nodes: tuple[str, ...]
    at: float
    kind: Literal["cached"] = "cached"


@dataclass(frozen=True, slots=True)
class EncodedPicture:
    """A node shows its unfinished picture (`Previewed`), or sends one instead of saving it.

    The newest replaces older ones not sent yet, except `lasting` ones, which the node sends.
    """

    node: str
    display: str
    image: bytes
    media_type: str = "image/jpeg"
    lasting: bool = False
    kind: Literal["previewed"] = "previewed"


@dataclass(frozen=True, slots=True)
class PlanMade:
    """A sampler was compiled (`Planned`): what `katz plan --json` prints of its program."""

    node: str
    plan: PlanData
    kind: Literal["plan_made"] = "plan_made"


@dataclass(frozen=True, slots=True)
class Wrote:
    """A file is finished, by its path relative to the folder that `place` names."""

    path: str
    place: Place
    kind: Literal["wrote"] = "wrote"


def _is_none(value: object) -> bool:
    return value is None


@dataclass(frozen=True, slots=True)
class JobNode:
    """Names a node that ran. `display` is the prompt's node that stands for a node of an
    expansion.
    """

    node: str
    node_type: str
    display: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A job ended; no event follows.

    `outputs`: what output nodes have for editors, by node. `meta`: for each of them node_id,
    display_node, parent_node, real_node_id. `executed`: nodes that ran or were cached. `seconds`:
    total, load, prepare, denoise, vae. `predicted`: seconds of sampling as planned. `cached`: the
    nodes that `Cached` named. `interrupted`: the node that ran when the job was cancelled.
    """

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
    """Names the job that an event belongs to."""

    job: str
    event: Annotated[ClientEvent, Field(discriminator="kind")]


def _nested(data: Any) -> Any:
    return {"job": data.get("job"), "event": data} if isinstance(data, Mapping) else data


def _flat(told: JobEvent, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
    data = dump(told)
    return {"job": data["job"], **data["event"]}


class _Flat:
    """Describes events as data: the fields of one of these classes, and `job`."""

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
"""Events to and from data."""
