"""Serves inside the runner: answers questions as soon as the node types are loaded, and runs jobs
as soon as the devices are ready.

Driven by messages; must not know processes and HTTP. Importing this module does not load torch:
torch and the workers load concurrently with the first answers.
"""

from __future__ import annotations

import platform
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self, TypeVar

from katz_graph.core.errors import InputError, KatzError, RunError
from katz_graph.core.events import Warned
from katz_graph.core.phases import Phases
from katz_graph.executor.launch.early_start import EarlyStart
from katz_graph.files.urls import NONE
from katz_graph.formats.object_info_write import object_info_json
from katz_graph.formats.shipped import template
from katz_graph.formats.ui_open import editor_document
from katz_graph.host.garbage import imports_are_done
from katz_graph.host.process_state import ProcessState
from katz_graph.node.types import NodeType
from katz_graph.packs import PackProblem, Registry, load_registry
from katz_graph.web.events import JOB_EVENT, Ended, JobError, JobEvent
from katz_graph.web.options import RunnerStart
from katz_graph.web.runner.answering import Answering
from katz_graph.web.runner.checking import check_prompt
from katz_graph.web.runner.uncommitted_files import UncommittedFiles
from katz_graph.web.runner_client.facts import OpenedWorkflow, PackFacts, RunnerFacts
from katz_graph.web.runner_client.messages import (
    ORDER,
    Answer,
    Cancel,
    Check,
    CountTokens,
    Draw,
    Free,
    GetObjectInfo,
    GetPacks,
    GetScripts,
    GetStats,
    GetTemplate,
    Happened,
    MakePlan,
    Question,
    Ready,
    Refused,
    ReplaceRequested,
    Run,
    Taken,
    Unfold,
)
from katz_graph.web.runner_client.wire import Numbered, ThreadedEnd

if TYPE_CHECKING:
    from katz_graph.web.runner.devices import Devices
    from katz_graph.web.runner.dry_runs import DryRuns
    from katz_graph.web.runner.plans import Plans
    from katz_graph.web.runner.runs import Runs

ANSWERS_AT_ONCE = 2  # two, because one may be slow
SLOW_ANSWER_S = 1.0  # seconds after which the next question starts, too
# seconds for an answer, even if `stop_seconds` is shorter: checking a large prompt takes long
MIN_DEADLINE_S = 10.0
Result = TypeVar("Result")
STOPPING = 2.0  # seconds that jobs have to stop


class RunnerService:
    """Starts the devices and packs that jobs need, and sends `Ready`. Workers are forked from the
    fork server of `early_start`. `post` adds a message to the server's message queue, so that one
    thread handles all messages. Messages that need devices wait until they are ready.
    """

    def __init__(
        self,
        start: RunnerStart,
        wire: ThreadedEnd,
        unkept: UncommittedFiles,
        post: Callable[[Numbered | None], None],
        early_start: EarlyStart,
        phases: Phases,
    ) -> None:
        self._start_with, self._wire, self._unkept, self._early_start = (
            start,
            wire,
            unkept,
            early_start,
        )
        options = start.options
        self._settings = options.settings().absolute()
        self._process = ProcessState()
        self._folders = replace(self._settings.folders(NONE), paths=False)
        self._devices: Devices | None = None
        self._runs: Runs | None = None
        self._plans: Plans | None = None
        self._dry_runs: DryRuns | None = None
        self._preloading: Future[tuple[str, ...]] | None = None
        self._is_ready = False
        self._early: list[Numbered] = []  # messages that wait for the devices
        self._phases = phases
        # loaded first, because everything else needs the node types
        self._registry, self._problems = load_registry(self._settings.packs, self._folders)
        phases.end("load node types")
        self._starting = _in_thread(self._start)
        self._answering = Answering(
            "katz-answers",
            ANSWERS_AT_ONCE,
            SLOW_ANSWER_S,
            max(options.stop_seconds, MIN_DEADLINE_S),
            self._request_replacement,
        )
        self._post = post
        self._starting.add_done_callback(lambda _: post(None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answering.close()
        if self._runs is not None and self._devices is not None:
            self._runs.close(STOPPING)
            self._devices.close()

    @property
    def is_ready(self) -> bool:
        """Returns whether the runner runs jobs."""
        return self._is_ready

    def obey(self, arrived: Numbered | None) -> None:
        """Handles a message of the server; None: the devices started, or failed to start, or
        preloading ended. Never blocks; answers come from other threads. Raises only KatzError, when
        the devices cannot be started.
        """
        if arrived is None:
            if self._preloading is None:
                return self._begin(self._starting.result())
            return self._take_jobs(self._preloading.result())
        match arrived.message:
            case (
                Check() | Draw() | GetObjectInfo() | GetPacks() | GetScripts() | GetTemplate()
            ) as question:
                self._ask(arrived.number, question, partial(self._about_nodes, question))
            case _ if self._runs is None or self._devices is None or not self._is_ready:
                self._early.append(arrived)
            case Run() as run:
                self._run(self._runs, run)
            case Cancel(job):
                self._runs.cancel(job)
            case Free() as question:
                self._ask(
                    arrived.number,
                    question,
                    partial(self._runs.free, question.unload_models, question.free_memory),
                )
            case GetStats() as question:
                self._ask(arrived.number, question, self._devices.stats)
            case CountTokens(document) as question if self._dry_runs is not None:
                self._ask(arrived.number, question, partial(self._dry_runs.text_sizes, document))
            case Unfold(document, node) as question if self._dry_runs is not None:
                self._ask(arrived.number, question, partial(self._dry_runs.step, document, node))
            case MakePlan() as question if self._plans is not None:
                planned = self._plans.enter(question)
                self._ask(arrived.number, question, planned, self._plans.threads)

    def _start(self) -> Devices:
        with self._phases.measured("load torch"):
            from katz_graph.web.runner.devices import Devices

        phases = Phases(self._phases.process)
        devices = Devices(
            self._start_with,
            self._settings,
            self._early_start,
            self._request_replacement,
            phases,
        )
        self._phases.done += phases.done
        return devices

    def _begin(self, devices: Devices) -> None:
        with self._phases.measured("prepare to run jobs"):
            from katz_graph.web.runner.dry_runs import DryRuns

            self._devices = devices
            self._plans = devices.plans(self._registry, self._folders, self._process)
            limits = self._start_with.options.limits
            self._dry_runs = DryRuns(self._registry, self._folders, limits)
            self._runs = devices.runs(
                self._registry, self._folders, self._emit, self._unkept, self._process
            )
            imports_are_done()
        names, place = self._start_with.options.preload, self._runs.place
        if not names:
            return self._take_jobs(())
        from katz_graph.web.runner.preload import preload

        self._preloading = _in_thread(partial(preload, names, place, self._phases))
        self._preloading.add_done_callback(lambda _: self._post(None))

    def _take_jobs(self, preloaded: tuple[str, ...]) -> None:
        assert self._devices is not None
        self._is_ready = True
        self._wire.send(Ready(replace(self._facts(self._devices), preloaded=preloaded)))
        early, self._early = self._early, []
        for message in early:
            self.obey(message)

    def _run(self, runs: Runs, run: Run) -> None:
        """Starts a job. Sends `Taken` first, so that the job counts as started if its packs crash
        this process.
        """
        self._wire.send(Taken(run.job))
        try:
            runs.start(ORDER.validate_python(run.order))
        except Exception as error:
            traceback.print_exc()
            self._emit(JobEvent(run.job, Ended("failed", time.time(), _internal(error))))

    def _ask(
        self,
        number: int,
        question: Question[Any],
        find: Callable[[], Any],
        threads: Answering | None = None,
    ) -> None:
        (threads or self._answering).submit(
            partial(self._answer, number, question, find),
            lambda why: self._refuse(
                number, RunError(f"{question.description} did not finish: {why}")
            ),
            question.origin,
        )

    def _answer(self, number: int, question: Question[Any], find: Callable[[], Any]) -> None:
        try:
            self._wire.send(Answer(question.answer.dump_python(find())), number)
        except BaseException as error:
            self._refuse(number, error)

    def _refuse(self, number: int, error: BaseException) -> None:
        if not isinstance(error, KatzError):
            traceback.print_exception(error)
        self._wire.send(
            Refused(str(error) if isinstance(error, KatzError) else _internal(error).message),
            number,
        )

    def _about_nodes(
        self, question: Check | Draw | GetObjectInfo | GetPacks | GetScripts | GetTemplate
    ) -> Any:
        """Answers a question that needs only node types."""
        registry, folders = self._registry, self._folders
        match question:
            case Check(document, targets):
                limits = self._start_with.options.limits
                with self._process.guarded("a node's own check of its inputs", _print):
                    return check_prompt(document, targets, registry, folders, limits)
            case Draw(document):
                return _editor_document(document, registry)
            case GetObjectInfo(name):
                types = (
                    registry if name is None else {name: registry[name]} if name in registry else {}
                )
                return object_info_json(types, folders)
            case GetPacks():
                return _packs(registry, self._problems)
            case GetScripts():
                return {pack: str(folder) for pack, folder in registry.web.items()}
            case GetTemplate(name):
                return template(name, registry)

    def _request_replacement(self, why: str, devices: Sequence[str] = ()) -> None:
        """Asks the server to replace this process once its jobs have ended, by a runner without
        these devices.
        """
        self._wire.send(ReplaceRequested(why, devices))

    def _facts(self, devices: Devices) -> RunnerFacts:
        return RunnerFacts(
            devices.facts(),
            len(self._registry),
            tuple(str(problem) for problem in self._problems),
            devices.torch,
            platform.python_version(),
            version("katz-graph"),
            workers=devices.workers(),
            excluded=tuple(sorted(devices.choices.lost)),
            unplaceable=tuple(devices.choices.unplaceable),
            phases=(*self._phases.done, *devices.phases()),
        )

    def _emit(self, reported: JobEvent) -> None:
        try:
            self._wire.send(Happened(JOB_EVENT.dump_python(reported)))
        # a pack's editor results may be nested too deeply, or be too large for a message
        except Exception as error:
            match reported.event:
                case Ended(at=at, seconds=seconds):
                    why = JobError("RunError", f"its result cannot be sent: {error}")
                    self._emit(JobEvent(reported.job, Ended("failed", at, why, seconds=seconds)))
                case event:
                    self._emit(
                        JobEvent(
                            reported.job, Warned(f"an event ({event.kind}) cannot be sent: {error}")
                        )
                    )


def _packs(registry: Registry, problems: Iterable[PackProblem]) -> tuple[PackFacts, ...]:
    nodes = Counter(kind.pack for kind in registry.values())
    why: dict[str, list[str]] = {}
    for problem in problems:
        why.setdefault(problem.pack, []).append(problem.message)
    return tuple(
        PackFacts(name, nodes[name], name in registry.web, tuple(why.get(name, ())))
        for name in dict.fromkeys((*nodes, *registry.web, *why))
    )


def _editor_document(document: Any, types: Mapping[str, NodeType]) -> OpenedWorkflow:
    try:
        return OpenedWorkflow(*editor_document(document, types))
    except InputError as error:
        return OpenedWorkflow(error=str(error))


def _in_thread(start: Callable[[], Result]) -> Future[Result]:
    """Calls a function in a daemon thread; returns its future. The process can exit without waiting
    for it.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(start())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="katz-devices", daemon=True).start()
    return future


def _print(line: str) -> None:
    print(line, flush=True)


def _internal(error: BaseException) -> JobError:
    from katz_graph.web.runner.runs import internal  # imports torch

    return internal(error)
