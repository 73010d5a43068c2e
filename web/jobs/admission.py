"""Decides whether a submission becomes a job, and which one. Must not know how jobs run."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable

from katz_graph.errors import KatzError, RunError
from katz_graph.web.jobs.dispatch import Dispatcher
from katz_graph.web.jobs.job import Job, Submission
from katz_graph.web.jobs.queries import Kept
from katz_graph.web.jobs.records import digest
from katz_graph.web.jobs.runtime_estimate import Forecast, JobFeatures, features_of
from katz_graph.web.jobs.store import JobStore

LATER = 10.0  # seconds after which a server that cannot take anything may be asked again
TAKEN = {
    "id": ("duplicate_id", "a job with the id {} exists already"),
    "key": ("key_reused", "this Idempotency-Key was used for another body"),
    "forgotten": ("key_reused", "the job of this Idempotency-Key has ended and was forgotten"),
}


class Refused(KatzError):
    """Refuses a submission. `status` is HTTP's, `kind` a word for programs; `retry_after` in
    seconds, where that may help.
    """

    def __init__(
        self, status: int, kind: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.retry_after = status, kind, retry_after


class Admission:
    """Takes jobs into the queue once they are on disk. `room`: jobs that may wait; `order`: that of
    the newest job.
    """

    def __init__(
        self,
        store: JobStore,
        dispatcher: Dispatcher,
        forecast: Forecast,
        room: int,
        clock: Callable[[], float],
    ) -> None:
        self.order = 0
        self.closed = False
        self._store = store
        self._dispatcher = dispatcher
        self._forecast = forecast
        self._room = room
        self._clock = clock
        self._arriving = 0  # jobs on their way to the disk

    async def check(self, client: str | None, key: str | None) -> None:
        """Raises Refused when there is no room, unless the key came before. Costs next to
        nothing.
        """
        if (
            self._full
            and key is not None
            and await self._store.repeated(client, key, None) is not None
        ):
            return
        self._check_room()

    async def accept(self, submission: Submission) -> Job:
        """Puts a submission on disk and into the queue; returns its job, or its key's earlier
        one.
        """
        features, body = await asyncio.to_thread(_prepare, submission)
        if submission.key is not None:
            earlier = await self._store.repeated(submission.client, submission.key, body)
            if earlier is not None:
                return self._earlier(earlier, submission)
        self._check_room()
        job = self._new(submission, features)
        self._check_deadline(job, features)
        self._arriving += 1
        try:
            kept = await self._store.add(job, submission.key, body)
        except RunError as error:
            raise Refused(503, "store_unavailable", str(error), LATER) from None
        finally:
            self._arriving -= 1
        if kept.job is not job:
            return self._earlier(kept, submission)
        self._forecast.know(job, features)
        self._dispatcher.queue.add(job)
        return job

    @property
    def _full(self) -> bool:
        return len(self._dispatcher.queue) + self._arriving >= self._room

    def _check_room(self) -> None:
        if self.closed:
            raise Refused(
                503, "shutting_down", "the server is shutting down and takes no jobs", LATER
            )
        if self._full:
            wait = self._forecast.next_place(
                [attempt.job for attempt in self._dispatcher.attempts.values()]
            )
            raise Refused(429, "queue_full", f"the queue is full: {self._room} jobs wait", wait)

    def _new(self, submission: Submission, features: JobFeatures) -> Job:
        self.order += 1
        number = submission.number
        if number is None:
            number = (
                self._dispatcher.queue.front_number() if submission.front else float(self.order)
            )
        return Job(
            id=submission.id or str(uuid.uuid4()),
            number=number,
            prompt=submission.prompt,
            targets=submission.targets,
            client=submission.client,
            extra=submission.extra,
            status="pending",
            created=self._clock(),
            deadline=submission.deadline,
            predicted=self._forecast.own(features),
            order=self.order,
        )

    def _check_deadline(self, job: Job, features: JobFeatures) -> None:
        """Refuses a deadline that cannot be met: with 409 if the job alone takes too long, with 429
        if others delay it.
        """
        if job.deadline is None:
            return
        running = [attempt.job for attempt in self._dispatcher.attempts.values()]
        wait = self._forecast.starts(
            running, self._dispatcher.queue.ahead_of(job.number, job.order)
        )[-1]
        own, time_left = self._forecast.own(features) or 0.0, job.deadline - job.created
        if own > time_left or time_left <= 0:
            raise Refused(
                409,
                "deadline",
                f"the deadline in {time_left:.1f} s cannot be met: the job takes {own:.1f} s",
            )
        if wait + own > time_left:
            message = (
                f"the deadline in {time_left:.1f} s cannot be met: the job waits for "
                f"{wait:.1f} s and takes {own:.1f} s"
            )
            raise Refused(429, "deadline", message, wait + own - time_left)

    def _earlier(self, kept: Kept, submission: Submission) -> Job:
        if kept.job is not None:
            return self._dispatcher.live(kept.job.id) or kept.job
        kind, message = TAKEN[kept.taken or "key"]
        raise Refused(409, kind, message.format(submission.id))


def _prepare(submission: Submission) -> tuple[JobFeatures, str]:
    """Computes what takes a while for large graphs: features, and the digest. Raises Refused for
    what JSON cannot say.
    """
    for name, value in (("number", submission.number), ("deadline", submission.deadline)):
        if value is not None and not math.isfinite(value):
            raise Refused(400, "invalid_prompt", f"{name}: {value} is no finite number")
    try:
        body = digest(submission)
    except ValueError as error:
        raise Refused(400, "invalid_prompt", f"the prompt cannot be kept: {error}") from None
    return features_of(submission.prompt, submission.targets), body
