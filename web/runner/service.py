"""The inside of the runner: node types, devices, results and jobs. Told what to do in messages; knows nothing of processes and HTTP."""

from __future__ import annotations

import contextlib
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

import torch

from katz_graph.approximations import allowed_names
from katz_graph.devices import check_present, parse_devices, parse_link, parse_places, threads_for
from katz_graph.errors import KatzError
from katz_graph.executor.assignment import Assignment
from katz_graph.executor.cache import ResultCache
from katz_graph.executor.engine import Choices
from katz_graph.executor.starting import start_workers
from katz_graph.formats.object_info_write import object_info_json
from katz_graph.packs import load_registry
from katz_graph.planner.program import Link
from katz_graph.settings import Settings
from katz_graph.web.events import JOB_EVENT, Ended, JobError, JobEvent, Warned
from katz_graph.web.options import ServeOptions
from katz_graph.web.runner.caches import Caches
from katz_graph.web.runner.checking import CHECKED, check_prompt
from katz_graph.web.runner.figures import Figures
from katz_graph.web.runner.limits import limited
from katz_graph.web.runner.order import ORDER
from katz_graph.web.runner.runs import Place, Runs, internal
from katz_graph.web.runner.unkept import UnkeptFiles
from katz_graph.web.runner_facts import FACTS, STATS, DeviceFacts, RunnerFacts, Stats
from katz_graph.web.wire import Message, ThreadedEnd

ANSWERING = 2  # threads for questions: one may be long
STOPPING = 2.0  # seconds that jobs have to stop


class Service:
    """Starts all that jobs need, and tells `ready` on the wire. KatzError with one line when something cannot be started."""

    def __init__(self, options: ServeOptions, wire: ThreadedEnd, unkept: UnkeptFiles) -> None:
        self._wire, self._limits = wire, options.limits
        devices = parse_devices(options.devices)
        check_present(devices)
        link = parse_link(options.link)
        choices = Choices(parse_places(options.place, devices.names), allowed_names(options.allow), lane=options.devices_per_job)
        threads = threads_for(devices, options.threads)
        if any(choice.device == "cpu" for choice in devices.choices):
            torch.set_num_threads(1)  # here jobs have a thread each; the processors are for the devices
        settings = Settings.read(options.models, options.packs, options.input, options.output, extra_model_paths=options.extra_model_paths)
        self._folders = replace(settings.folders(), paths=False, downloads=None)
        results = ResultCache.parse(options.cache, options.jobs_at_once or max(1, len(devices.choices)))
        self._registry, problems = load_registry(settings.packs, self._folders)
        packs = tuple(str(folder.absolute()) for folder in settings.packs)
        like = Assignment(threads=threads, packs=packs, control_net_bytes=options.control_net_bytes, policy=options.control_net_policy)
        with ExitStack() as opened:
            given = None if link is None else Link(*link)
            engine = start_workers(devices, like, _print, choices, settings.cache, given, options.spare)
            opened.enter_context(engine)
            self._cluster = engine.cluster
            self._restarts = 0
            self._count_restarts()
            self._cluster.on_given_up = lambda error: wire.send("worn", str(error))
            self._figures = opened.enter_context(contextlib.closing(Figures(engine.cluster)))
            self._answering = ThreadPoolExecutor(ANSWERING, "katz-answers")
            opened.callback(self._answering.shutdown, wait=False, cancel_futures=True)
            self._caches = Caches(results)
            types, shown = limited(self._registry, options.limits), options.limits.shown
            place = Place(engine, types, self._folders, self._caches, devices.text, options.previews, shown)
            self._runs = Runs(place, self._tell, unkept)
            self._opened = opened.pop_all()
        wire.send("ready", FACTS.dump_python(self._facts([str(problem) for problem in problems])))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._runs.close(STOPPING)
        self._opened.close()

    def obey(self, message: Message) -> None:
        """Do what the server asks for. Never waits, and never fails; answers come from other threads."""
        match message.kind:
            case "run":
                self._run(message.body)
            case "cancel":
                self._runs.cancel(message.body)
            case _:
                self._ask(message)

    def _run(self, body: Mapping[str, Any]) -> None:
        """What the server hears of first is that the job was taken: it counts as begun, whatever its packs do to this process."""
        job = body["id"]
        self._wire.send("taken", job)
        try:
            self._runs.start(ORDER.validate_python(body))
        except Exception as error:
            traceback.print_exc()
            self._tell(Ended(job, "failed", time.time(), internal(error)))

    def _ask(self, message: Message) -> None:
        try:
            question = self._questions[message.kind]
            self._answering.submit(self._answer, message.number, lambda: question(**message.body))
        except Exception as error:
            self._refuse(message.number, error)

    def _answer(self, number: int, question: Callable[[], Any]) -> None:
        try:
            self._wire.send("answer", question(), number)
        except BaseException as error:
            self._refuse(number, error)

    def _refuse(self, number: int, error: BaseException) -> None:
        if not isinstance(error, KatzError):
            traceback.print_exception(error)
        self._wire.send("refused", str(error) if isinstance(error, KatzError) else internal(error).message, number)

    @property
    def _questions(self) -> Mapping[str, Callable[..., Any]]:
        return {"check": self._check, "object_info": self._object_info, "free": self._runs.free, "stats": self._stats}

    def _check(self, document: Any, targets: list[str] | None) -> Any:
        return CHECKED.dump_python(check_prompt(document, targets, self._registry, self._folders, self._limits))

    def _object_info(self, name: str | None) -> bytes:
        types = self._registry if name is None else {name: self._registry[name]} if name in self._registry else {}
        return object_info_json(types, self._folders)

    def _stats(self) -> Any:
        return STATS.dump_python(Stats(self._figures.devices(), len(self._caches), self._restarts))

    def _count_restarts(self) -> None:
        told = self._cluster.on_vanished

        def vanished(name: str) -> None:
            self._restarts += 1
            told(name)

        self._cluster.on_vanished = vanished

    def _facts(self, problems: list[str]) -> RunnerFacts:
        devices = (DeviceFacts(one.name, one.device, _title(one.device)) for one in self._cluster.assignments.values())
        return RunnerFacts(
            tuple(devices),
            len(self._registry),
            tuple(problems),
            {pack: str(folder) for pack, folder in self._registry.web.items()},
            torch.__version__,
            platform.python_version(),
            version("katz-graph"),
            workers=self._cluster.pids(),
        )

    def _tell(self, event: JobEvent) -> None:
        try:
            self._wire.send("event", JOB_EVENT.dump_python(event))
        except Exception as error:  # what a pack has for editors goes deeper than messages do, or is too much for one
            if isinstance(event, Ended):
                why = JobError("RunError", f"its result cannot be sent: {error}")
                self._tell(Ended(event.job, "failed", event.at, why, seconds=event.seconds))
            else:
                self._tell(Warned(event.job, f"an event ({event.kind}) cannot be sent: {error}"))


def _title(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor() or "CPU"


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
