"""Declares the frames of the native channel. `web/live/katz_channel.py` documents when they are
sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from katz_graph.core.events import Timeline
from katz_graph.planner.report.document import PlanData
from katz_graph.web.events import EndedData, EventData
from katz_graph.web.jobs.job import Status
from katz_graph.web.live.channel import NodeProgress


@dataclass(frozen=True, slots=True)
class QueueData:
    """The running and waiting jobs, and the jobs ahead of each waiting job of the client."""

    running: int
    pending: int
    paused: bool
    places: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PreviewData:
    """The last unfinished picture of a job."""

    node: str
    display: str
    image: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class RunningData:
    """The state of a running job."""

    started: float | None
    nodes: Mapping[str, NodeProgress]
    plans: Mapping[str, PlanData]
    timeline: tuple[Timeline, ...]
    warnings: tuple[str, ...]
    preview: PreviewData | None


@dataclass(frozen=True, slots=True)
class JobData:
    """One of the client's jobs. Times are seconds since the epoch. `result` is null before the end,
    `state` unless running.
    """

    id: str
    status: Status
    number: float
    created: float
    started: float | None
    ended: float | None
    deadline: float | None
    predicted: float | None
    targets: tuple[str, ...]
    result: EndedData | None
    state: RunningData | None


@dataclass(frozen=True, slots=True)
class SnapshotFrame:
    """The state for a client that connects."""

    seq: int
    client: str
    server: Mapping[str, Any]
    queue: QueueData
    jobs: tuple[JobData, ...]
    type: Literal["snapshot"] = "snapshot"


@dataclass(frozen=True, slots=True)
class QueueFrame:
    """The queue changed."""

    seq: int
    running: int
    pending: int
    paused: bool
    places: Mapping[str, int]
    type: Literal["queue"] = "queue"


@dataclass(frozen=True, slots=True)
class EventFrame:
    """An event of one of the client's jobs."""

    seq: int
    event: EventData
    type: Literal["event"] = "event"


@dataclass(frozen=True, slots=True)
class JobFrame:
    """Answers `watch`; `job` is null for jobs of other clients."""

    seq: int
    id: str
    job: JobData | None
    type: Literal["job"] = "job"


@dataclass(frozen=True, slots=True)
class PongFrame:
    """Answers `ping`."""

    seq: int
    type: Literal["pong"] = "pong"


ServerFrame = SnapshotFrame | QueueFrame | EventFrame | JobFrame | PongFrame
SERVER_FRAME: TypeAdapter[ServerFrame] = TypeAdapter(
    Annotated[ServerFrame, Field(discriminator="type")]
)
"""Serializes frames."""
