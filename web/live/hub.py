"""Fans job events out to the websocket sessions of the client that submitted the job. Holds the
states of running jobs. Runs on the event loop and never blocks.

No other client receives a job's events. Must not know messages (a `Channel` serializes them) and
websockets (`routes/socket.py` carries them).
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from katz_graph.core.errors import KatzError
from katz_graph.core.events import PackMessage
from katz_graph.web.events import ClientEvent, Ended, Started
from katz_graph.web.jobs.job import Job
from katz_graph.web.live.channel import Channel, JobState, QueueView, Snapshot
from katz_graph.web.live.outbox import ByteBudget, ClientFrame, FrameQueue, RateLimit
from katz_graph.web.options import Limits

CLIENT_ID = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,200}")
OUTBOX = 32 * 2**20  # bytes queued for one session: enough for a node's batch of pictures
OUTBOXES = 256 * 2**20  # bytes queued for all sessions
ENDS = 512  # ended jobs, of all clients, with an unconfirmed end
GOING_AWAY, INTERNAL_ERROR = 1001, 1011  # RFC 6455, section 7.4.1
# seconds after which an open session has surely received a job's end; a broken connection is
# detected earlier
GRACE = 120.0
# seconds after which a job's end counts as received if the client then closes its connection
# properly
ARRIVED = 5.0
STATUS_RATE, STATUS_BURST = 20.0, 20.0  # queue updates per second
STATUS_SOCKETS = 16  # sockets per unit of cost; one update to one socket takes about 50 us
log = logging.getLogger("katz.web")


class TooManySockets(KatzError):
    """The server, the client or its address has reached its limit of websockets."""


class Queue(Protocol):
    """Lists the members of `Jobs` that the hub uses."""

    @property
    def running(self) -> Sequence[Job]: ...

    @property
    def pending(self) -> Sequence[Job]: ...

    @property
    def paused(self) -> bool: ...


class Session:
    """Represents one socket of a client. Receives nothing before `begin` or after `close`."""

    def __init__(
        self, hub: Hub, client: str, channel: Channel, budget: ByteBudget, address: str
    ) -> None:
        self.client, self.channel, self.started = client, channel, False
        self.address = address
        self.outbox = FrameQueue(OUTBOX, budget)
        self._hub = hub

    def begin(self, recent: Sequence[Job] = ()) -> None:
        """Sends the snapshot and starts sending events. `recent`: the client's finished jobs, read
        less than a minute ago.
        """
        self.started = True
        self.send(self.channel.greeting(self._hub.snapshot(self.client, recent)))

    def on_event(
        self, job: Job, event: ClientEvent, state: JobState, queue: Callable[[], QueueView]
    ) -> None:
        if self.started:
            self.send(self.channel.event(job, event, state, queue))

    def send(self, frames: Iterable[ClientFrame]) -> None:
        """Queues frames. A frame that cannot be serialized (such as a pack's data, nested too deep)
        ends this session, never the job.
        """
        try:
            for frame in frames:
                self.outbox.put(frame)
        except Exception:
            log.exception("a message to a client cannot be written")
            self.outbox.close(INTERNAL_ERROR, "internal error")
        self.outbox.wake()

    async def next(self) -> str | bytes:
        """Returns the next frame to send. Never returns after the session has ended: also wait for
        `outbox.closed`.
        """
        while True:
            if (frame := self.outbox.pop()) is not None:
                return frame.data
            try:
                async with asyncio.timeout(self.channel.due()):
                    await self.outbox.changed()
            except TimeoutError:
                self.send(self.channel.delayed_frames())

    def goodbye(self) -> None:
        """Handles an orderly close by the client."""
        if self.outbox.end is None and not len(self.outbox):
            self._hub.leave(self)

    def close(self) -> None:
        self._hub.disconnect(self)


@dataclass(frozen=True, slots=True)
class _End:
    """Holds an ended job, and for each session the loop time at which the end was sent."""

    job: Job
    sent_at: dict[Session, float] = field(default_factory=dict)


class Hub:
    """Connects sessions to jobs. `queue` returns `Jobs`. `facts` returns public facts about the
    server (versions, devices). `ended` is called with each ended job and its state.
    """

    def __init__(
        self,
        queue: Callable[[], Queue],
        facts: Callable[[], Mapping[str, Any]],
        limits: Limits,
        ended: Callable[[Job, JobState], None] = lambda job, state: None,
    ) -> None:
        self._queue, self._facts, self._limits, self._ended = queue, facts, limits, ended
        self._sessions: dict[str, dict[Session, None]] = {}
        self._states: dict[str, JobState] = {}
        self._ends: OrderedDict[str, _End] = OrderedDict()
        self._budget = ByteBudget(OUTBOXES)
        self._pace = RateLimit(STATUS_RATE, STATUS_BURST, time.monotonic)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def sockets(self) -> int:
        return sum(map(len, self._sessions.values()))

    def connect(self, client: str, channel: Channel, address: str = "") -> Session:
        """Opens another session of a client. Raises TooManySockets if the server or the client is
        at its limit, or the address has three quarters of the server's.
        """
        most = max(1, self._limits.sockets * 3 // 4)
        opened = (session for sessions in self._sessions.values() for session in sessions)
        if address and sum(session.address == address for session in opened) >= most:
            raise TooManySockets(f"this address has reached its limit of {most} websockets")
        if self.sockets >= self._limits.sockets:
            raise TooManySockets(
                f"this server has reached its limit of {self._limits.sockets} websockets"
            )
        if len(self._sessions.get(client, ())) >= self._limits.client_sockets:
            raise TooManySockets(
                f"this client has reached its limit of {self._limits.client_sockets} websockets; "
                "close one"
            )
        session = Session(self, client, channel, self._budget, address)
        self._sessions.setdefault(client, {})[session] = None
        return session

    def disconnect(self, session: Session) -> None:
        """Removes a session and its frames; the client's other sessions stay."""
        session.outbox.close(GOING_AWAY, "the connection has ended")
        of_client = self._sessions.get(session.client, {})
        of_client.pop(session, None)
        if not of_client:
            self._sessions.pop(session.client, None)
        for end in self._ends.values():
            end.sent_at.pop(session, None)

    def leave(self, session: Session) -> None:
        """Counts a job's end as received if it was sent to this session at least ARRIVED seconds
        ago.
        """
        before = asyncio.get_running_loop().time() - ARRIVED
        for job in [
            job for job, end in self._ends.items() if end.sent_at.get(session, math.inf) <= before
        ]:
            del self._ends[job]

    def publish(self, job: Job, event: ClientEvent) -> None:
        """Sends an event to the client of its job."""
        client = event.client or job.client if isinstance(event, PackMessage) else job.client
        state = self._state(job, event)
        state.on_event(event)
        for session in tuple(self._sessions.get(client, ())) if client is not None else ():
            session.on_event(job, event, state, lambda: self._view(without=job.id))
        if isinstance(event, Ended):
            self._states.pop(job.id, None)
            over = replace(job, status=event.status, ended=event.at, result=event)
            self._ended(over, state)
            if client is not None:
                self._ends[job.id] = _End(over)
                self._expect_seen(client, [job.id])
            if len(self._ends) > ENDS:
                self._ends.popitem(last=False)

    def status(self) -> None:
        """Sends the queue's length to all sessions: immediately, or delayed if it changes often."""
        if self._timer is not None or not self._sessions:
            return
        cost = max(1.0, self.sockets / STATUS_SOCKETS)
        if self._pace.take(cost):
            self._send_queue()
        else:
            self._timer = asyncio.get_running_loop().call_later(
                self._pace.wait(cost), self._delayed_status
            )

    def close(self, code: int = GOING_AWAY, reason: str = "the server is shutting down") -> None:
        """Ends all sessions."""
        if self._timer is not None:
            self._timer.cancel()
        for sessions in self._sessions.values():
            for session in sessions:
                session.outbox.close(code, reason)

    def state(self, job: Job) -> JobState | None:
        """Returns the state of a running job."""
        return self._states.get(job.id)

    def snapshot(self, client: str, recent: Sequence[Job]) -> Snapshot:
        queue = self._queue()
        missed = [end.job for end in self._ends.values() if end.job.client == client]
        self._expect_seen(client, [job.id for job in missed])
        ended = {
            job.id: job for job in sorted((*recent, *missed), key=lambda job: job.ended or 0.0)
        }
        live = {
            job.id: job
            for job in (*queue.running, *queue.pending)
            if job.client == client and job.id not in ended
        }
        states = {
            job.id: self._states.get(job.id) or JobState()
            for job in queue.running
            if job.id in live
        }
        return Snapshot(
            client,
            self._view(),
            (*ended.values(), *live.values()),
            states,
            tuple(missed),
            self._facts(),
        )

    def _state(self, job: Job, event: ClientEvent) -> JobState:
        if isinstance(event, Started):
            live = {job.id for job in self._queue().running}
            for stale in self._states.keys() - live:
                del self._states[stale]
            self._states[job.id] = JobState()
        return self._states.get(job.id) or JobState()

    def _expect_seen(self, client: str, jobs: Sequence[str]) -> None:
        """Records that the ends of these jobs were sent. They count as received if a session of the
        client is open GRACE seconds later, or closes properly before.
        """
        loop = asyncio.get_running_loop()
        for session in self._sessions.get(client, ()):
            for job in jobs if session.started else ():
                self._ends[job].sent_at.setdefault(session, loop.time())
        if jobs:
            loop.call_later(GRACE, self._seen, jobs)

    def _seen(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            ended = self._ends.get(job)
            if ended is not None and any(
                session.started for session in self._sessions.get(ended.job.client or "", ())
            ):
                del self._ends[job]

    def _delayed_status(self) -> None:
        self._timer = None
        self.status()

    def _send_queue(self) -> None:
        view = self._view()
        for client, sessions in tuple(self._sessions.items()):
            for session in sessions:
                if session.started:
                    session.send(session.channel.queue(client, view))

    def _view(self, without: str | None = None) -> QueueView:
        queue = self._queue()
        places: dict[str, dict[str, int]] = {}
        for place, job in enumerate(queue.pending):
            if job.client is not None:
                places.setdefault(job.client, {})[job.id] = place
        return QueueView(
            sum(job.id != without for job in queue.running),
            len(queue.pending),
            queue.paused,
            places,
        )
