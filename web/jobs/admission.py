"""Decides whether a submission becomes a new job, an existing one, or an error. Must not know how
jobs run.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from katz_graph.core.errors import DiskFull, KatzError, RunError
from katz_graph.web.jobs.dispatch import Dispatcher
from katz_graph.web.jobs.job import DueTimes, Job, JobFeatures, Submission
from katz_graph.web.jobs.queries import Submitted
from katz_graph.web.jobs.queue import Owner, owner
from katz_graph.web.jobs.records import digest
from katz_graph.web.jobs.runtime_estimate import Forecast, features_of
from katz_graph.web.jobs.store import JobStore

FAR_S = 1e6  # of a due time that a job can meet
LATER = 10.0  # seconds until a client may retry when the server cannot accept jobs
TAKEN = {
    "id": ("duplicate_id", "a job with the id {} exists already"),
    "key": ("key_reused", "this Idempotency-Key was used with another body"),
    "forgotten": (
        "key_reused",
        "the job of this Idempotency-Key has ended and is no longer stored",
    ),
}


class Refused(KatzError):
    """Refuses a submission. `status` is an HTTP status and `kind` a machine-readable code.
    `retry_after` is in seconds, or None if a retry would not help.
    """

    def __init__(
        self, status: int, kind: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry_after = status, kind, retry_after


class Admission:
    """Adds jobs to the queue after storing them on disk. `order` is that of the newest job.

    `room` is the number of jobs that may wait. Clients with waiting jobs share it equally: first by
    address, then by client of an address. A client below its share is admitted even if others fill
    the queue, so each address has at most `room` * (1 + 1/2 + ... + 1/`room`) waiting jobs.
    """

    def __init__(
        self,
        store: JobStore,
        dispatcher: Dispatcher,
        forecast: Forecast,
        room: int,
        clock: Callable[[], float],
        due_times: DueTimes,
    ) -> None:
        self.order = 0
        self.closed = False
        self._store = store
        self._dispatcher = dispatcher
        self._forecast = forecast
        self._room = room
        self._clock = clock
        self._due_times = due_times
        self._arriving = Counter[Owner]()  # jobs that are being written to disk

    async def check(self, client: str | None, key: str | None, origin: str) -> None:
        """Raises Refused if the queue is full, unless the key is known. Cheap."""
        submitter = owner(origin, client)
        if (
            self._why_full(submitter)
            and key is not None
            and await self._store.repeated(client, key, None) is not None
        ):
            return
        self._check_room(submitter)

    async def accept(self, submission: Submission) -> Job:
        """Stores a submission and queues it. Returns its job, or the earlier job of its key."""
        features, body = await asyncio.to_thread(_prepare, submission)
        if submission.key is not None:
            earlier = await self._store.repeated(submission.client, submission.key, body)
            if earlier is not None:
                return self._earlier(earlier, submission)
        submitter = owner(submission.origin, submission.client)
        self._check_room(submitter)
        job = self._new(submission, features)
        self._check_deadline(job, features)
        self._arriving[submitter] += 1
        try:
            outcome = await self._store.add(job, submission.key, body)
        except RunError as error:
            if isinstance(error, DiskFull):
                self._dispatcher.wait_for_room(str(error))
            raise Refused(503, "store_unavailable", str(error), LATER) from None
        finally:
            self._arriving[submitter] -= 1
        if outcome.job is not job:
            return self._earlier(outcome, submission)
        self._forecast.know(job, features)
        self._dispatcher.queue.add(job)
        return job

    def _why_full(self, submitter: Owner) -> str:
        """Returns the reason why a client may not queue another job, or an empty string."""
        waiting = Counter(self._dispatcher.queue.owners()) + self._arriving
        total, own = waiting.total(), waiting[submitter]
        clients = {*waiting, submitter}
        addresses = {address for address, _ in clients}
        at_address = sum(address == submitter[0] for address, _ in clients)
        part = self._room // len(addresses) // at_address
        if total < self._room:
            part = max(part, 1)
        if own < part:
            return ""
        if len(clients) == 1:
            return f"the queue is full: {total} jobs wait"
        return (
            f"the queue is full for this client: {own} of its jobs wait, and {len(clients)} "
            f"clients share {self._room} places"
        )

    def _check_room(self, submitter: Owner) -> None:
        if self.closed:
            raise Refused(
                503, "shutting_down", "the server is shutting down and takes no jobs", LATER
            )
        if why := self._why_full(submitter):
            wait = self._forecast.next_place(self._dispatcher.served)
            raise Refused(429, "queue_full", why, wait)

    def _new(self, submission: Submission, features: JobFeatures) -> Job:
        self.order += 1
        job = Job(
            id=submission.id or str(uuid.uuid4()),
            number=float(self.order) if submission.number is None else submission.number,
            prompt=submission.prompt,
            targets=submission.targets,
            client=submission.client,
            extra=submission.extra,
            status="pending",
            created=self._clock(),
            deadline=submission.deadline,
            predicted=self._forecast.own(features),
            order=self.order,
            origin=submission.origin,
        )
        job = replace(job, due=self._due_times.of(job))
        first = submission.front and submission.number is None
        return self._dispatcher.queue.front(job) if first else job

    def _check_deadline(self, job: Job, features: JobFeatures) -> None:
        """Refuses a deadline that cannot be met: with 409 if the job alone takes too long, with 429
        if other jobs delay it.
        """
        if job.deadline is None:
            return
        own, time_left = self._forecast.own(features) or 0.0, job.deadline - job.created
        if time_left <= 0:
            raise Refused(409, "deadline", "the deadline has passed")
        if own > time_left:
            raise Refused(
                409,
                "deadline",
                f"the deadline in {time_left:.1f} s cannot be met: the job takes {own:.1f} s",
            )
        self._forecast.know(job, features)
        try:
            if self._end_of(job) <= time_left:
                return
            wait = max(0.0, self._end_after_earlier(job) - own)
        finally:
            self._forecast.forget(job)
        if wait + own > time_left:
            message = (
                f"the deadline in {time_left:.1f} s cannot be met: the job waits for "
                f"{wait:.1f} s and takes {own:.1f} s"
            )
            raise Refused(429, "deadline", message, wait + own - time_left)

    def _end_of(self, new: Job) -> float:
        """Predicts the seconds until a new job ends."""
        waiting = [*self._dispatcher.later, *self._dispatcher.queue.with_new(new)]
        return self._forecast.predict(self._dispatcher.served, waiting, new).ends[new.id]

    def _end_after_earlier(self, new: Job) -> float:
        """Predicts the seconds until a new job ends that runs after those that are due before it,
        although it may be late then.
        """
        due = new.due or math.inf

        def before(jobs: Iterable[Job]) -> list[Job]:
            return [one for one in jobs if one is last or one.due is None or one.due <= due]

        last = replace(new, due=due + FAR_S)
        waiting = [*self._dispatcher.later, *self._dispatcher.queue.with_new(last)]
        served = before(self._dispatcher.served)
        return self._forecast.predict(served, before(waiting), last).ends[new.id]

    def _earlier(self, earlier: Submitted, submission: Submission) -> Job:
        if earlier.job is not None:
            return self._dispatcher.live(earlier.job.id) or earlier.job
        kind, message = TAKEN[earlier.taken or "key"]
        raise Refused(409, kind, message.format(submission.id))


def _prepare(submission: Submission) -> tuple[JobFeatures, str]:
    """Computes the job's features and the digest, which is slow for large graphs. Raises Refused
    for values that JSON cannot represent.
    """
    for name, value in (("number", submission.number), ("deadline", submission.deadline)):
        if value is not None and not math.isfinite(value):
            raise Refused(400, "invalid_prompt", f"{name}: expected a finite number, got {value}")
    try:
        body = digest(submission)
    except ValueError as error:
        raise Refused(400, "invalid_prompt", f"the prompt cannot be stored: {error}") from None
    return features_of(submission.prompt, submission.targets), body
