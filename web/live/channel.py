"""Defines the vocabulary between the hub and the channels that write its messages. Must not know
sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from katz_graph.web.events import ClientEvent
from katz_graph.web.jobs.job import Job
from katz_graph.web.live.job_state import JobState
from katz_graph.web.live.outbox import ClientFrame


@dataclass(frozen=True, slots=True)
class QueueView:
    """`places`: for each client, its waiting jobs with the number of jobs that wait before them."""

    running: int
    pending: int
    paused: bool
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        return self.running + self.pending


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a client may know when it connects.

    `jobs`: its own, recently ended ones first. `states`: of those that run. `missed`: those that
    ended while it was away, or may have been. `facts`: of the server.
    """

    client: str
    queue: QueueView
    jobs: tuple[Job, ...]
    states: Mapping[str, JobState]
    missed: tuple[Job, ...]
    facts: Mapping[str, Any]


class Channel(Protocol):
    """Writes events as messages of one protocol, for one session. `state` has taken the event in
    already.
    """

    def greeting(self, snapshot: Snapshot) -> Iterable[ClientFrame]: ...

    def event(self, job: Job, event: ClientEvent, state: JobState, queue: Callable[[], QueueView]) -> Iterable[ClientFrame]: ...

    def queue(self, client: str, queue: QueueView) -> Iterable[ClientFrame]: ...

    def due(self) -> float | None:
        """Returns the seconds until `late` has something to send; None: it has not."""

    def late(self) -> Iterable[ClientFrame]: ...
