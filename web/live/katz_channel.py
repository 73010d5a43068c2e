"""Implements the native channel: websocket subprotocol `katz.msgpack`, with a msgpack map that has
`type` and `seq` in each binary frame.

Server frames are declared in `web/live/frames.py`. `seq` counts from 0; a gap is a preview that was
replaced by a newer one. The frames:
- `snapshot`, first: the client's jobs (recently ended ones first), the queue, and server facts.
- `queue`, whenever it changes. A job listed in `places` waits: discard the state of its nodes.
- `event`: an event of one of the client's jobs. `event` has the fields of its class in
  `web/events.py`, with `job` and `kind`; pictures are bytes.
- `job`, the answer to `watch`; `pong`, the answer to `ping`.

From the client: `{"type": "ping"}` and `{"type": "watch", "job": ID}`. Any other frame ends the
connection: with 1003 for a text, and 1007 for malformed data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import msgpack
from pydantic import ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from katz_graph.core.errors import InputError
from katz_graph.web.events import ClientEvent, EncodedPicture, JobEvent
from katz_graph.web.jobs.job import Job
from katz_graph.web.live.channel import JobState, QueueView, Snapshot
from katz_graph.web.live.frames import (
    SERVER_FRAME,
    EventFrame,
    JobData,
    JobFrame,
    PongFrame,
    PreviewData,
    QueueData,
    QueueFrame,
    RunningData,
    ServerFrame,
    SnapshotFrame,
)
from katz_graph.web.live.outbox import ClientFrame

SUBPROTOCOL = "katz.msgpack"
REQUEST_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class Ping:
    type: Literal["ping"]
    __pydantic_config__ = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Watch:
    type: Literal["watch"]
    job: Annotated[StrictStr, Field(max_length=200)]
    __pydantic_config__ = ConfigDict(extra="forbid")


Request = Ping | Watch
REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="type")])


def read_request(data: bytes) -> Request:
    """Parses a client's request. Raises InputError if it is malformed."""
    if len(data) > REQUEST_BYTES:
        raise InputError(f"a message may have at most {REQUEST_BYTES:,} bytes")
    try:
        return REQUEST.validate_python(msgpack.unpackb(data))
    except ValidationError:
        raise InputError('expected {"type": "ping"} or {"type": "watch", "job": ID}') from None
    except Exception:  # msgpack's errors have no common base class
        raise InputError("is not msgpack") from None


class NativeChannel:
    """Serializes and numbers frames."""

    def __init__(self) -> None:
        self._sent = 0

    def greeting(self, snapshot: Snapshot) -> Iterator[ClientFrame]:
        jobs = tuple(_job(job, snapshot.states.get(job.id)) for job in snapshot.jobs)
        queue = _queue(snapshot.client, snapshot.queue)
        yield self._frame(
            SnapshotFrame(self._number(), snapshot.client, snapshot.facts, queue, jobs)
        )

    def queue(self, client: str, queue: QueueView) -> Iterator[ClientFrame]:
        now = _queue(client, queue)
        yield self._frame(
            QueueFrame(self._number(), now.running, now.pending, now.paused, now.places)
        )

    def event(
        self, job: Job, event: ClientEvent, state: JobState, queue: Callable[[], QueueView]
    ) -> Iterator[ClientFrame]:
        replaceable = isinstance(event, EncodedPicture) and not event.lasting
        yield self._frame(
            EventFrame(self._number(), JobEvent(job.id, event)), job.id if replaceable else ""
        )

    def pong(self) -> Iterator[ClientFrame]:
        yield self._frame(PongFrame(self._number()))

    def watched(
        self, identifier: str, job: Job | None, state: JobState | None
    ) -> Iterator[ClientFrame]:
        known = None if job is None else _job(job, state)
        yield self._frame(JobFrame(self._number(), identifier, known))

    def due(self) -> float | None:
        return None

    def delayed_frames(self) -> Iterator[ClientFrame]:
        yield from ()

    def _number(self) -> int:
        self._sent += 1
        return self._sent - 1

    def _frame(self, frame: ServerFrame, slot: str = "") -> ClientFrame:
        return ClientFrame(msgpack.packb(SERVER_FRAME.dump_python(frame)), slot)


def _queue(client: str, queue: QueueView) -> QueueData:
    return QueueData(queue.running, queue.pending, queue.paused, dict(queue.places.get(client, {})))


def _job(job: Job, state: JobState | None) -> JobData:
    """Describes a job. One that devices do not serve yet started with its first event, as for
    clients that received this event.
    """
    started = state.started if job.started is None and state is not None else job.started
    return JobData(
        job.id,
        job.status,
        job.number,
        job.created,
        started,
        job.ended,
        job.deadline,
        job.predicted,
        job.targets,
        None if job.result is None else JobEvent(job.id, job.result),
        None if state is None else _running(state),
    )


def _running(state: JobState) -> RunningData:
    seen = state.preview
    return RunningData(
        state.started,
        state.nodes,
        state.plans,
        tuple(state.timeline),
        tuple(state.warnings),
        None if seen is None else PreviewData(seen.node, seen.display, seen.image, seen.media_type),
    )
