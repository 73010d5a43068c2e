"""Speaks the native channel: websocket subprotocol `katz.msgpack`, a msgpack map with `type` and
`seq` in each binary frame.

From the server, `seq` counting from 0; a gap is a running picture that gave way to a newer one:
- `snapshot`, first: `client`; `server` (facts); `queue` as below; `jobs`: the client's own, each as
  under `job`, recently ended ones first.
- `queue`, whenever it changes: `running`, `pending` (how many jobs), `paused`, `places` (the
  client's waiting jobs, with how many wait before each). A job that stands in `places` waits: what
  was told of its nodes is void.
- `event`: something happened to one of the client's jobs. `event` has the fields of its class in
  `web/events.py`, with `job` and `kind`; pictures are bytes.
- `job`, the answer to `watch`: `id`, and `job`, which is null for a job that is not this client's,
  else `id`, `status`, `number`, `created`, `started`, `ended`, `deadline`, `predicted`, `targets`,
  `result` (the event `ended`; null before), `state` (null unless it runs: `started`, `nodes`,
  `plans`, `timeline`, `warnings`, `preview`, as they follow from its events).
- `pong`, the answer to `ping`.

From the client: `{"type": "ping"}` and `{"type": "watch", "job": ID}`. Anything else ends the
connection: 1003 for a text, 1007 for what is malformed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgpack
from pydantic import ConfigDict, Field, StrictStr, TypeAdapter, ValidationError

from katz_graph.errors import InputError
from katz_graph.web.events import JOB_EVENT, ClientEvent, EncodedPicture, JobEvent
from katz_graph.web.jobs.job import Job, result_as_data
from katz_graph.web.live.channel import JobState, QueueView, Snapshot
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
    """Parses a client's request. Raises InputError when it is malformed."""
    if len(data) > REQUEST_BYTES:
        raise InputError(f"at most {REQUEST_BYTES:,} bytes are read")
    try:
        return REQUEST.validate_python(msgpack.unpackb(data))
    except ValidationError:
        raise InputError('expected {"type": "ping"} or {"type": "watch", "job": ID}') from None
    except Exception:  # msgpack's own errors have no common base
        raise InputError("is not msgpack") from None


class NativeChannel:
    """Writes frames and numbers them."""

    def __init__(self) -> None:
        self._sent = 0

    def greeting(self, snapshot: Snapshot) -> Iterator[ClientFrame]:
        jobs = [_job(job, snapshot.states.get(job.id)) for job in snapshot.jobs]
        queue = _queue(snapshot.client, snapshot.queue)
        yield self._frame(
            "snapshot",
            {
                "client": snapshot.client,
                "server": dict(snapshot.facts),
                "queue": queue,
                "jobs": jobs,
            },
        )

    def queue(self, client: str, queue: QueueView) -> Iterator[ClientFrame]:
        yield self._frame("queue", _queue(client, queue))

    def event(
        self, job: Job, event: ClientEvent, state: JobState, queue: Callable[[], QueueView]
    ) -> Iterator[ClientFrame]:
        replaceable = isinstance(event, EncodedPicture) and not event.lasting
        yield self._frame(
            "event",
            {"event": JOB_EVENT.dump_python(JobEvent(job.id, event))},
            job.id if replaceable else "",
        )

    def pong(self) -> Iterator[ClientFrame]:
        yield self._frame("pong", {})

    def watched(
        self, identifier: str, job: Job | None, state: JobState | None
    ) -> Iterator[ClientFrame]:
        """Answers `watch`."""
        yield self._frame(
            "job", {"id": identifier, "job": None if job is None else _job(job, state)}
        )

    def due(self) -> float | None:
        return None

    def late(self) -> Iterator[ClientFrame]:
        yield from ()

    def _frame(self, type: str, fields: Mapping[str, Any], slot: str = "") -> ClientFrame:
        number, self._sent = self._sent, self._sent + 1
        return ClientFrame(msgpack.packb({"type": type, "seq": number, **fields}), slot)


def _queue(client: str, queue: QueueView) -> dict[str, Any]:
    return {
        "running": queue.running,
        "pending": queue.pending,
        "paused": queue.paused,
        "places": dict(queue.places.get(client, {})),
    }


def _job(job: Job, state: JobState | None) -> dict[str, Any]:
    return {
        "id": job.id,
        "status": job.status,
        "number": job.number,
        "created": job.created,
        "started": job.started,
        "ended": job.ended,
        "deadline": job.deadline,
        "predicted": job.predicted,
        "targets": list(job.targets),
        "result": result_as_data(job),
        "state": None if state is None else state.plain(),
    }
