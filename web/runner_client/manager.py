"""Manages the runner on the server's side: keeps one running, hands jobs over, passes on their
events, asks. Never imports what the runner runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

from pydantic import ValidationError

from katz_graph.core.errors import KatzError, RunError
from katz_graph.core.events import Warned
from katz_graph.web.events import JOB_EVENT, Ended, JobError, JobEvent
from katz_graph.web.jobs.job import Job
from katz_graph.web.options import RunnerStart, ServeOptions
from katz_graph.web.runner_client.facts import (
    CheckedPrompt,
    DeviceStats,
    DrawnWorkflow,
    PackFacts,
    PlannedGraph,
    RunnerFacts,
    Stats,
    TextSizes,
    WrittenOut,
)
from katz_graph.web.runner_client.messages import (
    ORDER,
    Cancel,
    Check,
    CountTokens,
    Draw,
    Free,
    FromRunner,
    GetObjectInfo,
    GetPacks,
    GetScripts,
    GetStats,
    GetTemplate,
    Happened,
    Keep,
    MakePlan,
    Order,
    Question,
    Run,
    Taken,
    Unfold,
    WornOut,
)
from katz_graph.web.runner_client.process import (
    PATIENCE,
    PROGRAM,
    Lost,
    RunnerDown,
    RunnerPatience,
    RunnerProcess,
    Unasked,
)

__all__ = ["DeviceStats", "Runner", "RunnerDown", "RunnerFacts", "Stats"]

# seconds between a runner that did not get ready and the next
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
STANDBY_S = 60.0  # that a prepared process waits to be needed
LOST_UNDER_ONE_QUESTION = 2  # runners, after which the question is to blame
BARREN = 2  # of these, for one and the same device, after which that is left out
Arguments = ParamSpec("Arguments")
log = logging.getLogger("katz.runner")


Workers = Callable[[], int | None]
"""Gives the descriptor of a connection to a fork server, or None where there is none."""


def no_fork_server() -> None:
    """Returns no fork server: every runner starts one of its own."""


class Runner:
    """Keeps one runner process alive and forwards jobs to it. Lives on the event loop.

    `heard` gets the events of jobs in order, of each job `Ended` last. `lost(ids, why, blamed)`
    names the jobs that a runner had taken and died under, after all its events were heard;
    `blamed`: one of them may have caused it. `workers` gives
    the descriptor of a connection to a fork server, which every runner inherits until one did not
    get ready: those after it start their own.
    """

    def __init__(
        self,
        options: ServeOptions,
        heard: Callable[[JobEvent], None],
        lost: Callable[[Sequence[str], str, bool], None],
        patience: RunnerPatience = PATIENCE,
        program: Sequence[str] = PROGRAM,
        workers: Workers = no_fork_server,
    ) -> None:
        self.restarts = 0
        self._options = options
        self._heard = _logged(heard)
        self._lost = _logged(lost)
        self._patience = patience
        self._program, self._workers = program, workers
        self._facts = RunnerFacts()
        self._child: RunnerProcess | None = None  # who is asked
        self._standby: RunnerProcess | None = None  # which has imported what the next one needs
        self._standing_by: asyncio.Task[None] | None = None
        self._there = asyncio.Event()  # somebody is, or nobody will be any more
        self._working = False  # it is ready, and gets jobs
        # jobs that no runner has taken yet
        self._waiting: dict[str, tuple[Order, asyncio.Future[None]]] = {}
        self._unwanted: set[str] = set()  # of these, those that were cancelled
        self._taken: set[str] = set()
        self._worn = ""  # why the runner of now gets no more jobs
        self._gone: tuple[str, ...] = ()  # devices that the next runner does without
        self._keeper: asyncio.Task[None] | None = None
        self._figures: asyncio.Task[Any] | None = None  # a question that is under way
        self._refuses = False

    @property
    def ready(self) -> bool:
        """Tells whether a runner takes jobs."""
        return (
            self._child is not None
            and self._working
            and not self._child.ended.done()
            and not self._worn
            and not self._refuses
        )

    @property
    def facts(self) -> RunnerFacts:
        """Returns the facts of the last runner that got ready."""
        if self._child is not None and self._child.is_ready:
            self._facts = self._child.ready.result()
        return self._facts

    async def start(self) -> None:
        """Returns when the first runner is ready; it answers questions before. Raises RunError or
        InputError with one line when it does not get ready.
        """
        child = await self._begun()
        self._keeper = asyncio.create_task(self._keep(child))

    def refuse(self) -> None:
        """Refuses `run` from now on, also for jobs that wait in it; nobody waits for the next
        runner.
        """
        self._refuses = True
        self._there.set()
        for _, taken in self._waiting.values():
            if not taken.done():
                taken.set_exception(RunnerDown("the server ends"))

    async def close(self) -> None:
        """Ends the runner and its jobs; nothing is left of it. Kills it when this is cancelled."""
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

    async def run(self, job: Job) -> None:
        """Returns when a runner has taken the job; waits for the next where there is none. Raises
        RunnerDown after `refuse`.
        """
        if self._refuses:
            raise RunnerDown("the server ends")
        order = Order(job.id, job.prompt, job.targets, job.client, job.extra)
        taken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[job.id] = order, taken
        try:
            self._hand_over(order, taken)
            await taken
        finally:
            self._waiting.pop(job.id, None)
            self._unwanted.discard(job.id)

    async def cancel(self, job_id: str) -> None:
        """Cancels a job. Its `Ended` follows, if it had not ended."""
        if job_id in self._waiting:
            self._unwanted.add(job_id)
            if not self.ready:
                self._drop(job_id)
        if self._child is not None:
            self._child.send(Cancel(job_id))

    def prepare(self) -> None:
        """Has a process import what a runner needs, for one that will probably be replaced soon; it
        ends when that does not happen.
        """
        if not self._refuses and (self._standing_by is None or self._standing_by.done()):
            self._standing_by = asyncio.create_task(self._stand_by())

    async def _stand_by(self) -> None:
        try:
            child = self._standby = await self._spawned()
        except RunError as error:
            log.warning("no runner stands by: %s", error)
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
        """Kills the runner, also one that gets no more jobs, and has the next one started. Its jobs
        are lost without blame.
        """
        if self._child is not None and self._working:
            self._child.kill(why, blamed=False)

    def kept(self, job_id: str) -> None:
        """Tells the runner that a job's end is on record: its files stay, whatever happens to
        it.
        """
        if self._child is not None:
            self._child.send(Keep(job_id))

    async def check(
        self, document: Any, targets: Sequence[str] | None, origin: str
    ) -> CheckedPrompt:
        """Checks a prompt in the runner; see `web.runner.checking`. Addresses take turns."""
        checked: CheckedPrompt = await self._ask(Check(document, targets, origin=origin))
        return checked

    async def draw(self, document: Any, origin: str) -> DrawnWorkflow:
        """Draws a workflow of any format but the editor's own as editors open it."""
        drawn: DrawnWorkflow = await self._ask(Draw(document, origin=origin))
        return drawn

    async def text_sizes(self, document: Any, origin: str) -> TextSizes:
        """Counts the tokens of the prompts of a document."""
        sizes: TextSizes = await self._ask(CountTokens(document, origin=origin))
        return sizes

    async def unfold(self, document: Any, node: str, origin: str) -> WrittenOut:
        """Writes a sampler out as the nodes of its step."""
        written: WrittenOut = await self._ask(Unfold(document, node, origin=origin))
        return written

    async def plan(self, question: MakePlan) -> PlannedGraph:
        """Plans the samplers of a checked prompt, in place of the client's earlier request."""
        planned: PlannedGraph = await self._ask(question)
        return planned

    async def packs(self) -> tuple[PackFacts, ...]:
        """Returns the packs that were found, and what is wrong with them."""
        answer: tuple[PackFacts, ...] = await self._ask(GetPacks())
        return answer

    async def scripts(self) -> Mapping[str, str]:
        """Returns folders of packs' scripts for the editor, by pack."""
        answer: dict[str, str] = await self._ask(GetScripts())
        return answer

    async def template(self, name: str) -> Mapping[str, Any] | None:
        """Returns a workflow that comes with the package, as an editor opens it; None when there is
        none of this name.
        """
        found: dict[str, Any] | None = await self._ask(GetTemplate(name))
        return found

    async def object_info(self, name: str | None = None) -> bytes:
        """Returns JSON of all node types, or of one; `{}` for an unknown one."""
        answer: bytes = await self._ask(GetObjectInfo(name))
        return answer

    async def free(self, unload_models: bool, free_memory: bool) -> None:
        """Unloads models, and drops results, as soon as no job runs."""
        await self._ask(Free(unload_models, free_memory))

    async def stats(self) -> Stats:
        """Returns the runner's figures. Questions at the same time share one answer."""
        if self._figures is None or self._figures.done():
            self._figures = asyncio.create_task(self._ask(GetStats()))
        return await asyncio.shield(self._figures)

    async def _ask(self, question: Question) -> Any:
        """Asks this runner, else the next one. Raises RunnerDown when two that were ready end under
        the question, which is why they do then, or none answers in time.
        """
        seconds = self._patience.answer if self.ready else self._patience.waiting
        lost = 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        return await (await self._present()).ask(question)
                    except Unasked:
                        continue
                    except Lost:
                        lost += 1
                        if lost == LOST_UNDER_ONE_QUESTION:
                            raise
        except TimeoutError:
            raise RunnerDown(
                f"the runner {'did not answer' if self.ready else 'did not get ready'} within "
                f"{seconds:g} s"
            ) from None

    async def _present(self) -> RunnerProcess:
        """Returns the current runner, which may be getting ready. Raises RunnerDown when there is
        none after `refuse`.
        """
        while self._child is None or self._child.ended.done():
            if self._refuses:
                raise RunnerDown("the server ends")
            await self._there.wait()
            await asyncio.sleep(0)  # who keeps runners hears of an end after this
        return self._child

    async def _keep(self, child: RunnerProcess) -> None:
        """Replaces every runner that ends, for ever: nothing that fails on the way ends this."""
        while True:
            why = await asyncio.shield(child.ended)
            log.error("the runner ended: %s", why)
            self._none()
            self._worn = ""
            self.restarts += 1
            lost, self._taken = sorted(self._taken), set()
            if lost:
                self._lost(lost, f"the process that ran it ended: {why}", child.blames_jobs)
            for job_id in list(self._unwanted):
                self._drop(job_id)
            child = await self._next()

    async def _next(self) -> RunnerProcess:
        """Starts a runner and returns it when it is ready. Leaves out devices that it fails to
        start with again and again, where others are left.
        """
        pause, failed = FIRST_PAUSE, Counter[str]()
        while True:
            try:
                return await self._begun()
            except Exception as error:
                log.error(
                    "%s; the next try is in %g s",
                    error,
                    pause,
                    exc_info=not isinstance(error, KatzError),
                )
                failed.update(error.devices if isinstance(error, KatzError) else ())
                self._workers = no_fork_server  # the other may be why
            if barren := [device for device, times in failed.items() if times == BARREN]:
                self._leave_out(barren)
                pause, failed = FIRST_PAUSE, Counter()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _begun(self) -> RunnerProcess:
        """Starts a runner and returns it when it is ready; questions reach it as soon as there is a
        process. Nothing is left of one that does not get ready.
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
        return RunnerStart(self._options, self._gone)

    async def _spawned(self) -> RunnerProcess:
        return await RunnerProcess.spawn(
            self._message, self._patience, self._program, self._workers()
        )

    def _leave_out(self, devices: Sequence[str]) -> None:
        """Does without devices from the next runner on, until the server starts anew. When none
        were left, all are tried again.
        """
        gone = {*self._gone, *devices}
        left = self._options.device_list().without(gone)
        self._gone = tuple(sorted(gone)) if left.choices else ()
        if self._gone:
            log.error(
                "left out until the server is started anew: %s; there are %s",
                ", ".join(self._gone),
                ", ".join(left.names),
            )

    def _none(self) -> None:
        """Notes that there is no runner now."""
        self._child, self._working = None, False
        if not self._refuses:
            self._there.clear()

    def _hand_over(self, order: Order, taken: asyncio.Future[None]) -> None:
        """Sends a job to the runner. A job that cannot be sent fails `taken`."""
        if self._child is not None and self.ready:
            try:
                self._child.send(Run(order.id, ORDER.dump_python(order)))
            except Exception as error:
                if not taken.done():
                    taken.set_exception(error)

    def _drop(self, job_id: str) -> None:
        """Ends a job that was cancelled before a runner had it."""
        self._unwanted.discard(job_id)
        _, taken = self._waiting.pop(job_id)
        if not taken.done():
            taken.set_result(None)
            self._heard(JobEvent(job_id, Ended("cancelled", time.time())))

    def _message(self, message: FromRunner) -> None:
        match message:
            case Taken(job):
                self._taken.add(job)
                if (waiting := self._waiting.get(job)) is not None and not waiting[1].done():
                    waiting[1].set_result(None)
            case WornOut(why, devices):
                log.error("the runner gets no more jobs and is replaced when it has none: %s", why)
                self._worn = why
                if devices:
                    self._leave_out(devices)
                self._replace_if_worn()
            case Happened(body):
                event = _event(body)
                if isinstance(event.event, Ended):
                    self._taken.discard(event.job)
                self._heard(event)
                self._replace_if_worn()

    def _replace_if_worn(self) -> None:
        if self._worn and not self._taken and self._child is not None:
            # `_worn` has what that printed, which is not for clients
            self._child.kill("it lost a device for good")


def _logged(callback: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Wraps a callback to log its errors: they end neither a connection nor the keeper of one."""

    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        try:
            callback(*arguments, **options)
        except Exception:
            log.exception("what the runner told was not taken in")

    return call


def _event(body: Mapping[str, Any]) -> JobEvent:
    """Parses an event of the runner. A malformed `ended` is still the job's end."""
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
