"""Dispatches jobs from the queue to the runner and stores their results. Each job has one attempt
at a time and one result.

A result is published after it is stored on disk. A job that has crashed the runner runs alone, so
that a second crash can be attributed to it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

from katz_graph.core.errors import DeviceFailed, DiskFull, KatzError, RunError
from katz_graph.core.events import NodeDone, NodeStarted, Progress
from katz_graph.serving.policy import can_meet
from katz_graph.web.events import (
    ClientEvent,
    Ended,
    JobError,
    JobEvent,
    JobNode,
    PlanMade,
    Started,
    Wrote,
)
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.queue import JobQueue
from katz_graph.web.jobs.records import StoredFile
from katz_graph.web.jobs.retention import JobFiles, temporary
from katz_graph.web.jobs.runtime_estimate import Forecast
from katz_graph.web.jobs.store import JobStore

T = TypeVar("T")
CRASHES = 2  # runner crashes after which a job fails
STOP_SECONDS = 30.0  # default time for a cancelled job to stop
PREPARE_S = 10.0  # the next runner starts its imports this long before the current one is replaced
FULL_DISK_RETRY_S = 2.0  # seconds between attempts to write to a full disk
log = logging.getLogger("katz.jobs")


class JobRunner(Protocol):
    """Runs jobs. A job's events follow `run`; `Ended` is the last one. After `keep_files` is called
    for a job, its files are not deleted.
    """

    @property
    def ready(self) -> bool: ...

    async def run(self, job: Job, seconds_after: Mapping[str, float]) -> None:
        """Hands a job over. `seconds_after`: predicted, after its samplers, by end node."""
        ...

    async def cancel(self, job_id: str) -> None: ...

    def prepare(self) -> None:
        """Starts the imports of the next runner."""
        ...

    def replace(self, why: str) -> None:
        """Kills the runner. Not counted as a crash of its jobs."""
        ...

    def keep_files(self, job_id: str) -> None: ...


@dataclass(slots=True)
class Attempt:
    """Tracks a job that the runner has."""

    job: Job
    number: int = 0  # in the order of starts
    urgent: bool = False  # devices serve it before the jobs that the runner had at its start
    alone: bool = True  # the runner has had no other job since its start
    # when the runner started it; `job.started`: when devices began to serve it
    began: float | None = None
    device_seconds: float = 0.0  # its share of the time of a group of devices that served it
    wrote: set[StoredFile] = field(default_factory=set)
    noted: set[StoredFile] = field(default_factory=set)  # files that the store has recorded
    # nodes that have started and are not done, the latest last
    running: dict[str, JobNode] = field(default_factory=dict)
    # the job runs; its result is being written to disk; it is going back to the queue
    phase: Literal["runs", "ends", "returns"] = "runs"
    cancelled: bool = False
    withdrawn: bool = False  # cancelled before devices served it: never listed as running
    stopping: bool = False  # the runner was asked to stop the job within `stop_seconds`
    returned: bool = False  # stopped by the server: goes back to the queue unless it ends by itself


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Limits the jobs that run at the same time. The runner has `running` jobs. Devices serve the
    earliest `served` of them, the served jobs. The others, the later jobs, prepare their work and
    use a device only while the served jobs do not need it. `groups` of devices serve one job each,
    or several that share calls, with at most `rows` rows each (0: jobs share none).

    A job that is due before all jobs of the runner is urgent: devices serve it first, even if the
    runner has no place for it, one for each group.
    """

    running: int = 1
    served: int = 1
    groups: int = 1
    rows: int = 0


class Dispatcher:
    """Starts queued jobs and tracks their attempts. While `hold` is set, no job starts."""

    def __init__(
        self,
        store: JobStore,
        files: JobFiles,
        forecast: Forecast,
        runner: JobRunner,
        concurrency: Concurrency,
        publish: Callable[[Job, ClientEvent], None],
        changed: Callable[[], None],
        clock: Callable[[], float],
        stop_seconds: float,
        fail_late: bool,
    ) -> None:
        self.queue = JobQueue(clock, forecast.predicted)
        self.attempts: dict[str, Attempt] = {}
        # jobs that never ran, while their result is written to disk
        self._ending: dict[str, tuple[Job, asyncio.Task[None]]] = {}
        self._numbers = itertools.count()
        self._closed = False
        self.hold = True
        self.idle = asyncio.Event()
        self.idle.set()
        self._store = store
        self._files = files
        self._forecast = forecast
        self._runner = runner
        self._concurrency = concurrency
        self._publish, self._changed, self._clock = publish, changed, clock
        self._stop_seconds, self._fail_late = stop_seconds, fail_late
        # since a time, the attempts that devices serve
        self._shares: tuple[float, Sequence[Attempt]] = 0.0, ()
        self._unwritten: set[str] = set()
        self._full = ""  # the reason why no job starts until the disk has room
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def trouble(self) -> str:
        """Returns the reason why no job starts, such as a full disk; empty if jobs start."""
        return self._full or (
            "the disk is full: results wait until they can be written" if self._unwritten else ""
        )

    @property
    def served(self) -> list[Job]:
        """Returns the served jobs, and those that are leaving the runner, the earliest first."""
        later = self._later()
        return [
            attempt.job
            for attempt in self.attempts.values()
            if not (attempt in later or attempt.withdrawn)
        ]

    @property
    def later(self) -> list[Job]:
        """Returns the later jobs of the runner, the earliest first."""
        return [attempt.job for attempt in self._later() if not attempt.withdrawn]

    def _later(self) -> list[Attempt]:
        return [one for one in self._running() if not one.urgent][self._concurrency.served :]

    def _running(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if attempt.phase == "runs"]

    def dispatch(self) -> None:
        """Starts the jobs that can start, and fails those that missed their deadline."""
        self._expire()
        while (
            not self.hold
            and self._runner.ready
            and not self.trouble
            and (job := self.queue.take(self._fits))
        ):
            self._start(job)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task that continues if its awaiter is cancelled. Logs errors other than
        KatzError.
        """
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, KatzError):
            log.error("internal error: %s", error, exc_info=error)

    async def close(self, seconds: float) -> None:
        """Stops handling events. Waits for pending tasks, then cancels them. Cancels them
        immediately if this call is cancelled.
        """
        self._closed = True
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=seconds)
        finally:
            for task in self._tasks:
                task.cancel()

    def on_event(self, reported: JobEvent) -> None:
        attempt = self.attempts.get(reported.job)
        if self._closed or attempt is None or attempt.phase != "runs":
            return
        match reported.event:
            case Ended() as result:
                return self._ended(attempt, result)
            case Started(at=at):
                attempt.began = at
                self._mark_served(at)
            case NodeStarted(node=node, display=display, type=type):
                attempt.running.pop(node, None)
                attempt.running[node] = JobNode(node, type, display)
            case NodeDone(node=node):
                attempt.running.pop(node, None)
            case Wrote(path=path, place=place):
                file = StoredFile(place, path)
                attempt.wrote.add(file)
                self.spawn(self._note(self._wrote(attempt, [file])))
            case PlanMade() | Progress():
                self._forecast.on_event(
                    attempt.job,
                    reported.event,
                    lambda: (self.served, [*self.later, *self.queue]),
                )
        self._emit(attempt.job, reported.event)

    def lost(self, ids: Sequence[str], why: str, blamed: bool = True) -> None:
        """Handles the runner's death during these started jobs. `blamed`: a job may be the cause,
        so the crash counts.
        """
        if self._closed:
            return
        for attempt in [
            attempt for id in ids if (attempt := self.attempts.get(id)) and attempt.phase == "runs"
        ]:
            job = attempt.job
            crashes = job.crashes + blamed
            if attempt.cancelled:
                latest = next(reversed(attempt.running.values()), None)
                ended = Ended("cancelled", self._clock(), interrupted=latest)
                self._end(attempt, ended, discard=True)
            elif crashes >= CRASHES:
                message = f"given up: its process died {CRASHES} times; last reason: {why}"
                attempt.job = replace(job, crashes=crashes)
                self._end(
                    attempt,
                    Ended("failed", self._clock(), JobError("WorkerLost", message)),
                    discard=True,
                )
            else:
                self._return(attempt, crashes)

    def cancel(self, id: str) -> bool:
        """Stops a waiting or running job. Returns False if there is nothing to stop."""
        attempt = self.attempts.get(id)
        if attempt is not None and attempt.phase != "ends":
            attempt.cancelled = True
            attempt.withdrawn |= attempt in self._later()
            if attempt.phase == "runs":
                self._stop(attempt)
            return True
        job = self.queue.remove(id)
        if job is not None:
            self.finish(job, Ended("cancelled", self._clock()))
        return job is not None

    def finish(self, job: Job, result: Ended) -> None:
        """Ends a job that left the queue without running."""
        self._ending[job.id] = job, self.spawn(self._keep(Attempt(job), result))

    def live(self, id: str) -> Job | None:
        """Returns a job if its end is not on disk."""
        if id in self._ending:
            return self._ending[id][0]
        attempt = self.attempts.get(id)
        return attempt.job if attempt is not None else self.queue.find(id)

    async def stopped(self, ids: Sequence[str], seconds: float) -> None:
        """Waits up to `seconds` until the cancellations are on disk, as the jobs' ends or as
        requests.
        """
        tasks = [self._ending[id][1] for id in ids if id in self._ending]
        if running := [id for id in ids if id in self.attempts]:
            tasks.append(self.spawn(self._note(self._store.stop(running))))
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    def give_back(self, only_later: bool = False) -> None:
        """Stops the running jobs, or only the later ones, and returns them to the queue; another
        attempt starts them from the beginning.
        """
        for attempt in self._later() if only_later else self._running():
            self._give_back(attempt)

    def _give_back(self, attempt: Attempt) -> None:
        attempt.returned = True
        self._stop(attempt)

    def _stop(self, attempt: Attempt) -> None:
        """Asks the runner to stop a job, and replaces the runner if the job does not stop."""
        self.spawn(self._note(self._runner.cancel(attempt.job.id)))
        if not attempt.stopping:
            attempt.stopping = True
            loop = asyncio.get_running_loop()
            ahead = min(PREPARE_S, self._stop_seconds / 2)
            loop.call_later(self._stop_seconds - ahead, self._prepare, attempt)
            loop.call_later(self._stop_seconds, self._escalate, attempt)

    def _prepare(self, attempt: Attempt) -> None:
        """Prepares the next runner, in case the current one does not stop the job in time."""
        if self._still_runs(attempt):
            self._runner.prepare()

    def _escalate(self, attempt: Attempt) -> None:
        if not self._still_runs(attempt):
            return
        if attempt in self._later():
            # it delays no other job yet, and a replacement would end the served ones
            loop = asyncio.get_running_loop()
            loop.call_later(self._stop_seconds, self._escalate, attempt)
        else:
            self._runner.replace(
                f"cancelled job {attempt.job.id} did not stop within {self._stop_seconds:g} s"
            )

    def _still_runs(self, attempt: Attempt) -> bool:
        current = self.attempts.get(attempt.job.id) is attempt and attempt.phase == "runs"
        return current and not self._closed

    def _fits(self, job: Job) -> bool:
        active = [attempt.job for attempt in self._running()]
        if job.crashes or any(other.crashes for other in active):
            return not active
        return len(active) < self._concurrency.running or self._is_urgent(job)

    def _is_urgent(self, job: Job) -> bool:
        """Returns whether devices serve a job before all jobs of the runner: it can end by its due
        time, and theirs are later or have passed.
        """
        now, running = self._clock(), self._running()
        return (
            job.due is not None
            and can_meet(job.due, self._forecast.predicted(job), now)
            and sum(attempt.urgent for attempt in running) < self._concurrency.groups
            and len(running) >= self._concurrency.served
            and all(
                other.job.due is None or not now <= other.job.due <= job.due for other in running
            )
        )

    def _start(self, job: Job) -> None:
        at = self._clock()
        attempt = self.attempts[job.id] = Attempt(
            replace(job, status="in_progress", started=None),
            next(self._numbers),
            self._is_urgent(job),
        )
        if len(running := self._running()) > 1:
            for one in running:
                one.alone = False
        self.idle.clear()
        self.spawn(self._note(self._store.begin(job.id, at)))
        self.spawn(self._hand_over(attempt))
        self._changed()

    async def _hand_over(self, attempt: Attempt) -> None:
        try:
            await self._runner.run(attempt.job, self._forecast.seconds_after(attempt.job))
        except KatzError as error:
            log.info("job %s is back in the queue: %s", attempt.job.id, error)
            if attempt.phase == "runs" and not self._closed:
                self._return(attempt, attempt.job.crashes)
        except Exception as error:
            log.exception("job %s could not be passed to the runner", attempt.job.id)
            if attempt.phase == "runs":
                why = JobError("RunError", f"the job could not be passed to the runner: {error}")
                self._end(attempt, Ended("failed", self._clock(), why))
        if attempt.cancelled and attempt.phase == "runs":
            await self._note(self._runner.cancel(attempt.job.id))

    def _ended(self, attempt: Attempt, result: Ended) -> None:
        if result.status == "cancelled" and attempt.returned and not attempt.cancelled:
            self._return(attempt, attempt.job.crashes)
        elif result.error is not None and result.error.kind == DeviceFailed.__name__:
            self.lost([attempt.job.id], result.error.message)
        elif result.error is not None and result.error.kind == DiskFull.__name__:
            self._disk_full(attempt, result)
        else:
            self._end(attempt, result)
        self.dispatch()

    def _disk_full(self, attempt: Attempt, result: Ended) -> None:
        """Requeues a job that failed because a disk is full, and starts no job until the disks have
        room. If they have room (another disk is full, or a quota is reached), retries the job once.
        """
        if attempt.cancelled or result.error is None:
            self._end(attempt, result)
        elif not self._files.have_room():
            self.wait_for_room(result.error.message)
            self._return(attempt, attempt.job.crashes)
        elif attempt.job.crashes + 1 < CRASHES:
            self._return(attempt, attempt.job.crashes + 1)
        else:
            self._end(attempt, result)

    def wait_for_room(self, why: str) -> None:
        """Starts no job until the disk has room."""
        if not self._full:
            self._full = "the disk is full: jobs wait for free space"
            log.error("%s: %s", self._full, why)
            self.spawn(self._until_room())

    async def _until_room(self) -> None:
        while not await asyncio.to_thread(self._files.have_room):
            await asyncio.sleep(FULL_DISK_RETRY_S)
        log.info("the disk has free space again")
        self._full = ""
        self.dispatch()

    def _end(self, attempt: Attempt, result: Ended, discard: bool = False) -> None:
        attempt.phase = "ends"
        self._mark_served(self._clock())
        if attempt.job.started is None:  # ended as a later job
            attempt.job = replace(attempt.job, started=attempt.began)
        else:
            attempt.job = replace(
                attempt.job, device_seconds=attempt.device_seconds, alone=attempt.alone
            )
        self.spawn(self._keep(attempt, result, discard))

    def _return(self, attempt: Attempt, crashes: int) -> None:
        attempt.phase = "returns"
        self._forecast.returned(attempt.job)
        self._mark_served(self._clock())
        self.spawn(self._put_back(attempt, crashes))

    async def _keep(self, attempt: Attempt, result: Ended, discard: bool = False) -> None:
        """Stores a result without a time limit, then publishes it. `discard`: deletes the attempt's
        files.
        """
        job = attempt.job
        stored = None
        try:
            if discard:
                await asyncio.to_thread(self._files.delete, attempt.wrote)
                attempt.wrote.clear()
            stored = await self._on_disk(attempt, result)
        except Exception:
            log.exception(
                "job %s ended, but its end cannot be stored; the next start runs it again", job.id
            )
        self._unwritten.discard(job.id)
        self._ending.pop(job.id, None)
        self._leave(job.id)
        if stored is not None:
            finished = replace(job, status=stored.status, ended=stored.at, result=stored)
            self._forecast.ended(finished)
            self._emit(finished, stored)
        self._changed()
        self.dispatch()

    async def _on_disk(self, attempt: Attempt, result: Ended) -> Ended:
        """Stores the result, or an error if the result cannot be stored; returns the stored one.
        Waits while the disk is full.

        If the server is killed at any point, every job with a result on record keeps its files, and
        the files of jobs without a result are deleted: by the runner until `keep_files` is called,
        then by the next start of the server. They are therefore recorded before that call.
        """
        job, stored = attempt.job, result
        while True:
            try:
                shown = temporary(stored, attempt.wrote)
                sized = await asyncio.to_thread(self._files.sized, shown) if shown else []
                await self._wrote(attempt, attempt.wrote - attempt.noted)
                if job.id in self.attempts:
                    self._runner.keep_files(job.id)
                await self._store.finish(
                    replace(job, status=stored.status, ended=stored.at, result=stored), sized
                )
                return stored
            except RunError as error:
                if job.id not in self._unwritten:
                    log.error("the result of job %s waits for the disk: %s", job.id, error)
                self._unwritten.add(job.id)
                await asyncio.sleep(FULL_DISK_RETRY_S)
            except Exception as error:
                if stored is not result:
                    raise
                log.warning("the result of job %s cannot be stored", job.id, exc_info=error)
                why = JobError("RunError", f"its result cannot be stored: {error}")
                stored = Ended("failed", result.at, why, seconds=result.seconds)

    async def _wrote(self, attempt: Attempt, files: Collection[StoredFile]) -> None:
        if files:
            await self._store.wrote(attempt.job.id, files)
            attempt.noted.update(files)

    async def _put_back(self, attempt: Attempt, crashes: int) -> None:
        """Returns a job to its place in the queue after deleting the files of its attempt. Does not
        dispatch because the runner may be down.
        """
        job = replace(attempt.job, status="pending", started=None, crashes=crashes)
        await self._note(asyncio.to_thread(self._files.delete, attempt.wrote))
        if not attempt.cancelled:
            await self._note(self._store.retry(job.id, crashes))
        self._leave(job.id)
        if attempt.cancelled:
            self.finish(job, Ended("cancelled", self._clock()))
        else:
            self.queue.put_back(job, attempt.number)
            self._changed()

    def _leave(self, id: str) -> None:
        self.attempts.pop(id, None)
        if not self.attempts:
            self.idle.set()

    def _mark_served(self, now: float) -> None:
        """Sets the start of newly served jobs, so that their durations do not include the time of
        earlier jobs. Charges served jobs for the time until now: several jobs of one group of
        devices share it.
        """
        since, served = self._shares
        urgent = sum(attempt.urgent for attempt in served)
        rest = (self._concurrency.groups - urgent) / max(len(served) - urgent, 1)
        for attempt in served:
            share = 1.0 if attempt.urgent else min(1.0, rest)
            attempt.device_seconds += share * max(0.0, now - since)
        later = self._later()
        served = [one for one in self._running() if one.began is not None and one not in later]
        self._shares = now, served
        for attempt in served:
            if attempt.job.started is None:
                attempt.job = replace(attempt.job, started=now)

    def _expire(self) -> None:
        now = self._clock()
        for attempt in self._later():
            late = attempt.job.deadline is not None and attempt.job.deadline < now
            if late and not attempt.returned:
                self._give_back(attempt)  # and then it expires in the queue
        for job in list(self.queue):
            if why := self._why_late(job, now):
                self.queue.remove(job.id)
                self.finish(job, Ended("failed", now, JobError("RunError", why)))

    def _why_late(self, job: Job, now: float) -> str:
        """Returns the reason why a waiting job fails because of its due time; empty if it waits."""
        if job.deadline is not None and job.deadline < now:
            return f"its deadline passed {now - job.deadline:.1f} s ago, before it could start"
        if not self._fail_late or job.due is None:
            return ""
        own = self._forecast.predicted(job) or 0.0
        if can_meet(job.due, own, now):
            return ""
        return (
            f"it cannot end by its due time, in {job.due - now:.1f} s: it takes {own:.1f} s "
            "(--late fail)"
        )

    async def _note(self, work: Coroutine[Any, Any, None]) -> None:
        """Awaits work and logs its failure. The runner, or a later start of the server, recovers
        from it.
        """
        try:
            await work
        except KatzError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("cleaning up after a job failed; the next start repeats it")

    def _emit(self, job: Job, event: ClientEvent) -> None:
        try:
            self._publish(job, event)
        except Exception:
            log.exception("an event of job %s was not sent", job.id)
