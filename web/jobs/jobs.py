"""Manages a server's jobs: admits, orders, runs and stores them. Runs on the event loop. Must not
know HTTP or the implementation that runs jobs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from katz_graph.core.errors import KatzError
from katz_graph.web.events import ClientEvent, Ended
from katz_graph.web.jobs.admission import Admission
from katz_graph.web.jobs.dispatch import STOP_SECONDS, Concurrency, Dispatcher, JobRunner
from katz_graph.web.jobs.job import NO_DUE_TIMES, DueTimes, Job, JobFeatures, Submission
from katz_graph.web.jobs.queue import NotWaiting
from katz_graph.web.jobs.remaining import Accuracy
from katz_graph.web.jobs.retention import KEY_RETENTION_S, JobFiles, Retention, outdated
from katz_graph.web.jobs.runtime_estimate import RECENT, Forecast, features_of
from katz_graph.web.jobs.store import JobStore
from katz_graph.web.options import MB, Limits

TICK = 1.0  # seconds between checks of deadlines and of the runner
CLEANING = 60.0  # seconds between cleanups
STOPPING = 5.0  # seconds that jobs have to stop
REPORTS = 256 * MB  # bytes of stored reports; the oldest are dropped first
PAUSED = "paused"  # name of the flag in the store
log = logging.getLogger("katz.jobs")


class Jobs:
    """Calls `publish` for each event of a job and `changed` when the queue changes. Call `start`
    before use.
    """

    def __init__(
        self,
        store: JobStore,
        runner: JobRunner,
        publish: Callable[[Job, ClientEvent], None],
        changed: Callable[[], None],
        limits: Limits,
        concurrency: Concurrency,
        files: JobFiles,
        retention: Retention,
        clock: Callable[[], float] = time.time,
        stop_seconds: float = STOP_SECONDS,
        due_times: DueTimes = NO_DUE_TIMES,
    ) -> None:
        self._store, self._files, self._changed, self._clock = store, files, changed, clock
        self._limits, self._retention = limits, retention
        self._forecast = Forecast(concurrency.groups, clock, concurrency.rows)
        self._dispatcher = Dispatcher(
            store,
            files,
            self._forecast,
            runner,
            concurrency,
            publish,
            changed,
            clock,
            stop_seconds,
            due_times.fail_late,
        )
        self._due_times = due_times
        self._admission = Admission(
            store, self._dispatcher, self._forecast, limits.queue, clock, due_times
        )
        self._paused = False
        self._moving = asyncio.Lock()
        self._reports: dict[str, asyncio.Task[None]] = {}  # reports that are being written to disk
        self._ticking: asyncio.Task[None] | None = None
        self.on_event = self._dispatcher.on_event
        self.lost = self._dispatcher.lost
        # queries of stored jobs
        self.finished, self.history, self.recent = store.finished, store.history, store.recent
        self.between, self.listed = store.between, store.listed

    async def start(self) -> None:
        """Loads the jobs of an earlier server and starts dispatching. Raises RunError if the store
        cannot be read.
        """
        self._admission.order = await self._store.last_place()
        self._paused = await self._store.flag(PAUSED)
        for job in reversed(await self._store.completed(RECENT)):
            self._forecast.learn(job, await _features(job))
        if self._due_times.factor is not None and not self._forecast.known:
            log.info(
                "--slo: nothing is predicted yet; jobs have due times once a job has completed"
            )
        for job in sorted(await self._store.unfinished(), key=lambda job: job.order):
            left = await self._store.files(job.id)
            await asyncio.to_thread(self._files.delete, left)
            if job.status == "cancelled":
                self._dispatcher.finish(job, Ended("cancelled", self._clock()))
                continue
            if left or job.status == "in_progress":
                await self._store.retry(job.id, job.crashes)
            self._forecast.know(job, await _features(job))
            due = self._due_times.of(job)
            self._dispatcher.queue.add(replace(job, status="pending", started=None, due=due))
        self._resume_starting()
        self._ticking = asyncio.create_task(self._tick())

    @property
    def running(self) -> Sequence[Job]:
        """Returns the jobs that the runner has."""
        return [attempt.job for attempt in self._dispatcher.attempts.values()]

    @property
    def served(self) -> Sequence[Job]:
        """Returns the jobs that devices serve, or that are leaving the runner, in order."""
        return self._dispatcher.served

    @property
    def waiting(self) -> Sequence[Job]:
        """Returns the jobs that devices do not serve yet, in order: the runner's later jobs, then
        those in the queue.
        """
        return [*self._dispatcher.later, *self.pending]

    @property
    def pending(self) -> Sequence[Job]:
        """Returns the jobs in the queue, in order."""
        return list(self._dispatcher.queue)

    @property
    def paused(self) -> bool:
        """Returns whether the queue is paused: no job starts until `resume`."""
        return self._paused

    @property
    def trouble(self) -> str:
        """Returns the reason why no job starts, such as a full disk; empty if jobs start."""
        return self._dispatcher.trouble

    async def admit(self, client: str | None, key: str | None, origin: str = "") -> None:
        """Raises Refused if a submission would be refused now, unless its key is known. Cheap: call
        it before validating the prompt.
        """
        await self._admission.check(client, key, origin)

    async def submit(self, submission: Submission) -> Job:
        """Stores a job and returns it. Returns the earlier job for a known Idempotency-Key. Raises
        Refused if the queue is full, the deadline cannot be met, or the id or key is in use.
        """
        return await asyncio.shield(self._dispatcher.spawn(self._take_in(submission)))

    async def cancel(self, ids: Iterable[str]) -> dict[str, bool]:
        """Stops waiting or running jobs. Returns True for each job that this call stops: these jobs
        never run again.
        """
        stopped = {id: self._dispatcher.cancel(id) for id in ids}
        await self._dispatcher.stopped([id for id, was in stopped.items() if was], STOPPING)
        return stopped

    async def cancel_all(self) -> int:
        """Cancels all jobs; returns the number of stopped jobs."""
        return sum((await self.cancel([job.id for job in [*self.waiting, *self.served]])).values())

    async def clear_waiting(self) -> int:
        """Cancels the waiting jobs; returns their number."""
        return sum((await self.cancel([job.id for job in self.waiting])).values())

    async def interrupt(self, id: str | None) -> None:
        """Stops a job that the runner has; for None, the served jobs."""
        stopped = self.served if id is None else [job for job in self.running if job.id == id]
        await self.cancel([job.id for job in stopped])

    async def pause(self) -> None:
        """Starts no job until `resume`, even after a restart, and returns later jobs to the queue.
        Raises RunError if the flag cannot be stored.
        """
        await self._store.set_flag(PAUSED, True)
        self._paused = self._dispatcher.hold = True
        self._dispatcher.give_back(only_later=True)
        self._changed()

    async def resume(self) -> None:
        await self._store.set_flag(PAUSED, False)
        self._paused = False
        self._resume_starting()
        self._changed()

    async def move(
        self, id: str, number: float | None = None, front: bool = False, before: str | None = None
    ) -> Job:
        """Moves a waiting job among its client's jobs: to the front, directly before another job,
        or to a number. Raises NotWaiting if the job does not wait, and RunError if the move cannot
        be stored; in both cases no job has moved.
        """
        queue = self._dispatcher.queue
        if number is not None and not math.isfinite(number):
            raise NotWaiting(f"number: expected a finite number, got {number}")
        async with self._moving:
            if before is not None and not front:
                moved = queue.moved_before(id, before)
            elif front or number is None:
                moved = [queue.moved_to_front(id)]
            else:
                moved = [queue.renumbered(id, number)]
            await self._store.place(moved)
            queue.place(moved)
        self._changed()
        return moved[0]

    async def job(self, id: str) -> Job | None:
        """Returns a job in any state, with its documents."""
        return self._dispatcher.live(id) or await self._store.job(id)

    def keep_report(self, id: str, make: Callable[[], bytes]) -> None:
        """Stores the report of a finished job. Calls `make` in a thread."""

        async def keep() -> None:
            try:
                await self._store.keep_report(id, await asyncio.to_thread(make))
            except KatzError as error:
                log.warning("the report of job %s is not stored: %s", id, error)
            finally:
                self._reports.pop(id, None)

        self._reports[id] = self._dispatcher.spawn(keep())

    async def report(self, id: str) -> bytes | None:
        """Returns a stored report, or None if there is none or it was dropped."""
        if (pending := self._reports.get(id)) is not None:
            await asyncio.wait([pending])
        return await self._store.report(id)

    async def forget(self, ids: Sequence[str]) -> None:
        """Forgets finished jobs and deletes their temporary files. Ignores other jobs."""
        await asyncio.to_thread(self._files.delete, await self._store.forget(ids))

    async def forget_all(self) -> None:
        await asyncio.to_thread(self._files.delete, await self._store.forget(None))

    def expected_wait(self) -> float:
        """Predicts the seconds until a new job would start."""
        return self._forecast.predict(self.served, self.waiting).idle

    def expected_waits(self) -> Mapping[str, float]:
        """Predicts the seconds until each waiting job starts."""
        waiting = self.waiting
        starts = self._forecast.predict(self.served, waiting).starts
        return {job.id: starts[job.id] for job in waiting}

    def remaining(self, job: Job) -> float | None:
        """Predicts the remaining seconds of a job that the runner has; None if nothing is known."""
        return self._forecast.remaining(job, self.served, self.waiting)

    @property
    def accuracy(self) -> Accuracy:
        """Compares predicted with measured remaining seconds of jobs."""
        return self._forecast.accuracy

    async def drain(self, seconds: float) -> None:
        """Stops dispatching and waits for the served jobs. Served jobs that take longer than
        `seconds`, and all later jobs, are stopped and returned to the queue.
        """
        self._admission.closed = self._dispatcher.hold = True
        self._dispatcher.give_back(only_later=True)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._dispatcher.idle.wait(), seconds)
            return
        self._dispatcher.give_back()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._dispatcher.idle.wait(), STOPPING)

    async def close(self) -> None:
        """Cancels pending work. The next start restarts the jobs that still run. The store stays
        open.
        """
        self._admission.closed = self._dispatcher.hold = True
        if self._ticking is not None:
            self._ticking.cancel()
        await self._dispatcher.close(STOPPING)

    async def _take_in(self, submission: Submission) -> Job:
        job = await self._admission.accept(submission)
        self._changed()
        self._dispatcher.dispatch()
        return job

    def _resume_starting(self) -> None:
        self._dispatcher.hold = self._paused or self._admission.closed
        self._dispatcher.dispatch()

    async def _tick(self) -> None:
        cleaned = -CLEANING
        while True:
            try:
                self._dispatcher.dispatch()
                if time.monotonic() - cleaned >= CLEANING:
                    cleaned = time.monotonic()
                    await self._clean()
            except KatzError as error:
                log.warning("%s", error)
            except Exception:
                log.exception("deleting old jobs failed; jobs continue")
            await asyncio.sleep(TICK)

    async def _clean(self) -> None:
        await self.forget(
            await outdated(self._store, self._retention, self._limits.history, self._clock())
        )
        await self._store.forget_keys(self._clock() - KEY_RETENTION_S)
        await self._store.drop_reports(REPORTS)
        await self._store.shrink()


async def _features(job: Job) -> JobFeatures:
    return await asyncio.to_thread(features_of, job.prompt, job.targets)
