"""Manages the runner on the server's side: restarts it, hands jobs over, forwards their events,
asks questions. Never imports the code that the runner runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec

from pydantic import ValidationError

from katz_graph.core.errors import KatzError, RunError
from katz_graph.core.events import Warned
from katz_graph.web.events import JOB_EVENT, Ended, JobError, JobEvent
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.queue import owner_of
from katz_graph.web.options import RunnerStart, ServeOptions
from katz_graph.web.runner_client.facts import DeviceStats, RunnerFacts, Stats
from katz_graph.web.runner_client.messages import (
    ORDER,
    Cancel,
    FromRunner,
    GetStats,
    Happened,
    Keep,
    Order,
    Question,
    ReplaceRequested,
    Reply,
    Run,
    Taken,
)
from katz_graph.web.runner_client.process import (
    PATIENCE,
    PROGRAM,
    ForkedProcess,
    Lost,
    NeverAnswered,
    RunnerDown,
    RunnerPatience,
    RunnerProcess,
    Unasked,
)

__all__ = ["DeviceStats", "Runner", "RunnerDown", "RunnerFacts", "Stats"]

# seconds between a failed start and the next one
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STANDBY_S = 60.0  # seconds after which an unused prepared process is ended
LOST_UNDER_ONE_QUESTION = 2  # lost runners after which the question is blamed
MAX_FAILED_STARTS_PER_DEVICE = (
    2  # failed starts because of the same device, after which the device is excluded
)
NONE_PREDICTED: Mapping[str, float] = MappingProxyType({})
Arguments = ParamSpec("Arguments")
log = logging.getLogger("katz.runner")


Workers = Callable[[], int | None]
"""Returns the descriptor of a connection to a fork server, or None."""


def no_fork_server() -> None:
    """Returns None: every runner starts its own fork server."""


class Runner:
    """Keeps one runner process alive and forwards jobs to it. Runs on the event loop.

    `on_event` receives the events of jobs in order; `Ended` is each job's last. `lost(ids, why,
    blamed)` reports the started jobs of a dead runner, after all its events; `blamed`: one of them
    may be the cause. `workers` returns the connection to a fork server that runners inherit. After
    a runner fails to start, later runners start their own. `first`: a process for the first runner.
    """

    def __init__(
        self,
        options: ServeOptions,
        on_event: Callable[[JobEvent], None],
        lost: Callable[[Sequence[str], str, bool], None],
        patience: RunnerPatience = PATIENCE,
        program: Sequence[str] = PROGRAM,
        workers: Workers = no_fork_server,
        first: ForkedProcess | None = None,
    ) -> None:
        self.restarts = 0
        self._options = options
        self._on_event = _logged(on_event)
        self._lost = _logged(lost)
        self._patience = patience
        self._program, self._workers = program, workers
        self._first = first
        self._facts = RunnerFacts()
        self._child: RunnerProcess | None = None  # the current runner, which answers questions
        self._standby: RunnerProcess | None = None  # has imported the next runner's modules
        self._standing_by: asyncio.Task[None] | None = None
        self._there = asyncio.Event()  # set if a runner exists, or none ever will
        self._working = False  # the runner is ready and gets jobs
        # jobs that no runner has taken yet
        self._waiting: dict[str, tuple[Order, asyncio.Future[None]]] = {}
        self._unwanted: set[str] = set()  # the cancelled jobs among `_waiting`
        self._taken: set[str] = set()
        self._drain_reason = ""  # the reason why the current runner gets no more jobs
        self._excluded: tuple[str, ...] = ()  # devices that the next runner excludes
        self._keeper: asyncio.Task[None] | None = None
        self._figures: asyncio.Task[Any] | None = None  # a pending question for statistics
        self._refuses = False

    @property
    def ready(self) -> bool:
        """Returns whether a runner takes jobs."""
        return (
            self._child is not None
            and self._working
            and not self._child.ended.done()
            and not self._drain_reason
            and not self._refuses
        )

    @property
    def pending(self) -> str:
        """Returns why the runner does not take jobs yet."""
        loading = ", ".join(Path(name).name for name in self._start().options.preload)
        return "the runner is starting" + (f", and preloads {loading}" if loading else "")

    @property
    def facts(self) -> RunnerFacts:
        """Returns the facts of the last runner that became ready."""
        if self._child is not None and self._child.is_ready:
            self._facts = self._child.ready.result()
        return self._facts

    async def start(self) -> None:
        """Returns when the first runner is ready; it answers questions earlier. Raises RunError or
        InputError with one line if it does not become ready.
        """
        try:
            child = await self._started()
        except NeverAnswered as error:
            log.warning("%s; another one is started without the fork server", error)
            self._workers = no_fork_server
            child = await self._started()
        self._keeper = asyncio.create_task(self._keep(child))

    def refuse(self) -> None:
        """Makes `run` raise RunnerDown, also for jobs that already wait. Nothing waits for another
        runner.
        """
        self._refuses = True
        self._there.set()
        for _, taken in self._waiting.values():
            if not taken.done():
                taken.set_exception(RunnerDown("the server is shutting down"))

    async def close(self) -> None:
        """Ends the runner and its jobs, and waits until the processes have exited. Kills the runner
        if this call is cancelled.
        """
        self.refuse()
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._standing_by is not None:
            self._standing_by.cancel()
            await asyncio.wait([self._standing_by])
        if self._child is not None:
            child = self._child
            self._none()
            await child.close()

    async def run(self, job: Job, seconds_after: Mapping[str, float] = NONE_PREDICTED) -> None:
        """Hands a job over, with the predicted seconds after its samplers, and returns when a
        runner has taken it. Waits for the next runner if none is ready. Raises RunnerDown after
        `refuse`.
        """
        if self._refuses:
            raise RunnerDown("the server is shutting down")
        share = " ".join(owner_of(job))
        order = Order(
            job.id,
            job.prompt,
            job.targets,
            job.client,
            job.extra,
            job.due,
            share,
            dict(seconds_after),
        )
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[job.id] = order, taken
        try:
            self._hand_over(order, taken)
            await taken
        finally:
            self._waiting.pop(job.id, None)
            self._unwanted.discard(job.id)

    async def cancel(self, job_id: str) -> None:
        """Cancels a job. Its `Ended` event follows unless it has already ended."""
        if job_id in self._waiting:
            self._unwanted.add(job_id)
            if not self.ready:
                self._drop(job_id)
        if self._child is not None:
            self._child.send(Cancel(job_id))

    def prepare(self) -> None:
        """Starts a process that does the imports of the next runner, because the current one will
        probably be replaced. The process ends if it is not needed in time.
        """
        if not self._refuses and (self._standing_by is None or self._standing_by.done()):
            self._standing_by = asyncio.create_task(self._stand_by())

    async def _stand_by(self) -> None:
        try:
            child = self._standby = await self._spawned()
        except RunError as error:
            log.warning("no spare runner is ready: %s", error)
            return
        child.prepare(self._start())
        try:
            await asyncio.wait([child.ended], timeout=STANDBY_S)
        finally:
            if self._standby is child:
                self._standby = None
                await child.give_up()

    def _take_standby(self) -> RunnerProcess | None:
        child, self._standby = self._standby, None
        if self._standing_by is not None:
            self._standing_by.cancel()
        return None if child is None or child.ended.done() else child

    def replace(self, why: str) -> None:
        """Kills the runner, even if draining, so that the next one starts. Not counted as a crash
        of its jobs.
        """
        if self._child is not None and self._working:
            self._child.kill(why, blamed=False)

    def keep_files(self, job_id: str) -> None:
        """Makes the runner keep the files of a job, whose end is about to be stored."""
        if self._child is not None:
            self._child.send(Keep(job_id))

    async def stats(self) -> Stats:
        """Returns the runner's statistics. Concurrent callers share one answer."""
        if self._figures is None or self._figures.done():
            self._figures = asyncio.create_task(self.ask(GetStats()))
        return await asyncio.shield(self._figures)

    async def ask(self, question: Question[Reply]) -> Reply:
        """Asks the current runner, or the next one if it ends first. Raises RunnerDown if no answer
        comes in time, or if two ready runners end during the question, which is then probably the
        cause.
        """
        seconds = self._patience.answer if self.ready else self._patience.waiting
        lost = 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        answer: Reply = await (await self._present()).ask(question)
                        return answer
                    except Unasked:
                        continue
                    except Lost:
                        lost += 1
                        if lost == LOST_UNDER_ONE_QUESTION:
                            raise
        except TimeoutError:
            raise RunnerDown(
                f"the runner {'did not answer' if self.ready else 'was not ready'} within "
                f"{seconds:g} s"
            ) from None

    async def _present(self) -> RunnerProcess:
        """Returns the current runner, which may still be starting. Raises RunnerDown if none exists
        after `refuse`.
        """
        while self._child is None or self._child.ended.done():
            if self._refuses:
                raise RunnerDown("the server is shutting down")
            await self._there.wait()
            await asyncio.sleep(0)  # lets `_keep` handle the end of a runner first
        return self._child

    async def _keep(self, child: RunnerProcess) -> None:
        """Replaces every runner that ends. Never returns and never raises an exception."""
        while True:
            why = await asyncio.shield(child.ended)
            log.error("the runner ended: %s", why)
            self._none()
            self._drain_reason = ""
            self.restarts += 1
            lost, self._taken = sorted(self._taken), set()
            if lost:
                self._lost(lost, f"the process that ran it ended: {why}", child.blames_jobs)
            for job_id in list(self._unwanted):
                self._drop(job_id)
            child = await self._next()

    async def _next(self) -> RunnerProcess:
        """Starts a runner and returns it when it is ready. Excludes devices that repeatedly make
        the start fail, unless no device would be left.
        """
        pause, failed = FIRST_PAUSE, Counter[str]()
        while True:
            try:
                return await self._started()
            except Exception as error:
                log.error(
                    "%s; the next try is in %g s",
                    error,
                    pause,
                    exc_info=not isinstance(error, KatzError),
                )
                failed.update(error.devices if isinstance(error, KatzError) else ())
                self._workers = no_fork_server  # the inherited fork server may be the cause
            if failing_devices := [
                device for device, times in failed.items() if times == MAX_FAILED_STARTS_PER_DEVICE
            ]:
                self._leave_out(failing_devices)
                pause, failed = FIRST_PAUSE, Counter()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _started(self) -> RunnerProcess:
        """Starts a runner and returns it when it is ready. Questions reach it as soon as its
        process exists. If it does not become ready, kills it and its children.
        """
        child = self._child = self._take_standby() or await self._spawned()
        child.begin(self._start())
        self._there.set()
        try:
            await asyncio.shield(child.ready)
        except BaseException:
            self._none()
            await child.give_up()
            raise
        self._working = True
        for order, taken in list(self._waiting.values()):
            self._hand_over(order, taken)
        return child

    def _start(self) -> RunnerStart:
        """Returns the start parameters of a runner. Only the first one preloads, because jobs wait
        for later ones.
        """
        options = replace(self._options, preload=()) if self.restarts else self._options
        return RunnerStart(options, self._excluded)

    async def _spawned(self) -> RunnerProcess:
        first, self._first = self._first, None
        if first is not None:
            return await RunnerProcess.forked(self._message, self._patience, first)
        return await RunnerProcess.spawn(
            self._message, self._patience, self._program, self._workers()
        )

    def _leave_out(self, devices: Sequence[str]) -> None:
        """Excludes devices from the next runner on, until the server restarts. Includes all devices
        again if none would be left.
        """
        excluded = {*self._excluded, *devices}
        left = self._options.device_list().without(excluded)
        self._excluded = tuple(sorted(excluded)) if left.choices else ()
        if self._excluded:
            log.error(
                "excluded until the server is restarted: %s; remaining: %s",
                ", ".join(self._excluded),
                ", ".join(left.names),
            )

    def _none(self) -> None:
        self._child, self._working = None, False
        if not self._refuses:
            self._there.clear()

    def _hand_over(self, order: Order, taken: asyncio.Future[None]) -> None:
        """Sends a job to the runner. If sending fails, sets the exception on `taken`."""
        if self._child is not None and self.ready:
            try:
                self._child.send(Run(order.id, ORDER.dump_python(order)))
            except Exception as error:
                if not taken.done():
                    taken.set_exception(error)

    def _drop(self, job_id: str) -> None:
        """Ends a job that was cancelled before a runner took it."""
        self._unwanted.discard(job_id)
        _, taken = self._waiting.pop(job_id)
        if not taken.done():
            taken.set_result(None)
            self._on_event(JobEvent(job_id, Ended("cancelled", time.time())))

    def _message(self, message: FromRunner) -> None:
        match message:
            case Taken(job):
                self._taken.add(job)
                if (waiting := self._waiting.get(job)) is not None and not waiting[1].done():
                    waiting[1].set_result(None)
            case ReplaceRequested(why, devices):
                log.error(
                    "the runner gets no new jobs and is replaced when its jobs have ended: %s", why
                )
                self._drain_reason = why
                if devices:
                    self._leave_out(devices)
                self._replace_if_drained()
            case Happened(body):
                event = _event(body)
                if isinstance(event.event, Ended):
                    self._taken.discard(event.job)
                self._on_event(event)
                self._replace_if_drained()

    def _replace_if_drained(self) -> None:
        if self._drain_reason and not self._taken and self._child is not None:
            # `_drain_reason` may contain pack output, which clients must not see
            self._child.kill("it permanently lost a device")


def _logged(callback: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Wraps a callback to log its exceptions, so that they end neither a connection nor the
    supervisor.
    """

    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        try:
            callback(*arguments, **options)
        except Exception:
            log.exception("an event of the runner was not processed")

    return call


def _event(body: Mapping[str, Any]) -> JobEvent:
    """Parses an event of the runner. A malformed `ended` event still ends the job."""
    try:
        return JOB_EVENT.validate_python(body)
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, problem['loc']))}: {problem['type']}"
            for problem in error.errors(include_input=False)
        )
        log.error("an event of the runner is malformed: %s", "; ".join(problems))
        job = str(body.get("job"))
        if body.get("kind") == "ended":
            return JobEvent(
                job, Ended("failed", time.time(), JobError("RunError", "its result is malformed"))
            )
        return JobEvent(job, Warned(f"an event ({body.get('kind')}) is malformed"))
