"""Provides a queue, jobs and a hub without a server, for tests of the messages to clients."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from katz_graph.web.jobs.job import Job, Status
from katz_graph.web.live.channel import Channel
from katz_graph.web.live.hub import Hub, Session
from katz_graph.web.options import Limits

FACTS = {"version": "1"}


@dataclass(slots=True)
class FakeJobs:
    """Holds jobs by state. `ended`: jobs in the store."""

    running: list[Job] = field(default_factory=list)
    pending: list[Job] = field(default_factory=list)
    ended: list[Job] = field(default_factory=list)
    paused: bool = False

    async def recent(self, client: str, limit: int) -> list[Job]:
        return [job for job in reversed(self.ended) if job.client == client][:limit]

    async def job(self, identifier: str) -> Job | None:
        return next(
            (job for job in (*self.running, *self.pending, *self.ended) if job.id == identifier),
            None,
        )


def make_job(
    identifier: str = "job", client: str | None = "ann", status: Status = "in_progress"
) -> Job:
    return Job(identifier, 1.0, {}, ("9",), client, {}, status, 1000.0)


def make_hub(jobs: FakeJobs, limits: Limits | None = None) -> Hub:
    return Hub(lambda: jobs, lambda: FACTS, limits or Limits())


def connect(hub: Hub, channel: Channel, client: str = "ann", recent: Sequence[Job] = ()) -> Session:
    session = hub.connect(client, channel)
    session.begin(recent)
    return session


def drained(session: Session) -> list[str | bytes]:
    """Removes and returns all frames waiting to be sent."""
    frames = []
    while (frame := session.outbox.pop()) is not None:
        frames.append(frame.data)
    return frames


def texts(session: Session) -> list[dict[str, Any]]:
    """Returns the waiting JSON messages, parsed."""
    return [json.loads(frame) for frame in drained(session) if isinstance(frame, str)]


def unpacked(frames: Iterable[str | bytes]) -> list[dict[str, Any]]:
    return [msgpack.unpackb(frame) for frame in frames if isinstance(frame, bytes)]
