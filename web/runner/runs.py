"""Runs jobs, each in a separate thread. Must not know the queue."""

from __future__ import annotations

import gc
import json
import math
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from katz_graph.checks.validate import upstream
from katz_graph.core.allowed_approximations import made_with
from katz_graph.core.errors import Cancelled, KatzError, RunError
from katz_graph.core.events import Event, Reused, Sampled
from katz_graph.core.graph import Graph
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.worker.device_fault import device_fault
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api
from katz_graph.formats.secrets import hide_secrets
from katz_graph.host.process_state import ProcessState
from katz_graph.host.run_lock import RunLock
from katz_graph.ir.changes import PlanChanges
from katz_graph.node.types import NodeType
from katz_graph.packs import Registry
from katz_graph.web.events import Ended, EndStatus, JobError, JobEvent, Started
from katz_graph.web.runner.caches import Caches
from katz_graph.web.runner.reporter import PACE, JobReporter, described, text_of
from katz_graph.web.runner.uncommitted_files import UncommittedFiles
from katz_graph.web.runner_client.messages import CHOICES, Order

CHUNK_NAME = 79  # characters of a PNG text chunk's keyword, in Latin-1
OWN_CHUNKS = ("prompt", "katz")
NO_PREVIEWS = "none"  # a client's `preview_method` in ComfyUI's `extra_data`


@dataclass(frozen=True, slots=True)
class RunnerDevices:
    """Holds the resources shared by jobs. `devices` is the operator's device list as given; `shown`
    is `Limits.shown`.
    """

    engine: DeviceEngine
    registry: Registry
    folders: Folders
    caches: Caches
    devices: str
    previews: bool
    shown: int
    process: ProcessState
    shared_rows: SharedRows = ALONE
    pack_lock: RunLock = field(default_factory=RunLock)


class Runs:
    """Runs jobs; thread-safe. `emit` receives the events of all jobs; `Ended` is each job's last.
    Calls `request_replacement` when a device fails in this process, because later jobs cannot use
    it.
    """

    def __init__(
        self,
        place: RunnerDevices,
        emit: Callable[[JobEvent], None],
        unkept: UncommittedFiles,
        request_replacement: Callable[[str], None],
    ) -> None:
        self.place, self._emit, self._unkept, self._request_replacement = (
            place,
            emit,
            unkept,
            request_replacement,
        )
        self._changed = threading.Condition()
        # None until the job's thread has created it
        self._contexts: dict[str, RunContext | None] = {}
        self._stopped: set[str] = set()
        self._running = 0
        self._measured = False  # the devices, after the first job
        self._to_free: set[str] = set()  # models, results

    def start(self, order: Order) -> None:
        """Runs a job in a new thread. Raises RuntimeError if the system cannot start another
        thread; the job is then not registered.
        """
        with self._changed:
            self._contexts[order.id] = None
        arrival = time.monotonic()
        try:
            threading.Thread(
                target=self._run, args=(order, arrival), name=f"katz-job-{order.id}", daemon=True
            ).start()
        except RuntimeError:
            self._forget(order.id)
            raise

    def cancel(self, job: str) -> None:
        """Requests a job's cancellation. Does nothing if the job has ended."""
        with self._changed:
            if job not in self._contexts:
                return
            self._stopped.add(job)
            self._changed.notify_all()
            context = self._contexts[job]
        if context is not None:
            context.cancel()

    def close(self, seconds: float) -> None:
        """Cancels all jobs and waits up to `seconds` until they have ended."""
        with self._changed:
            jobs = list(self._contexts)
        for job in jobs:
            self.cancel(job)
        with self._changed:
            self._changed.wait_for(lambda: not self._contexts, seconds)

    def free(self, unload_models: bool, free_memory: bool) -> None:
        """Unloads models and drops results as soon as no job runs. Returns immediately; new jobs
        wait until this is done.
        """
        wanted = {
            name for name, asked in (("models", unload_models), ("results", free_memory)) if asked
        }
        with self._changed:
            started = bool(self._to_free)
            self._to_free |= wanted
        if wanted and not started:
            threading.Thread(target=self._free, name="katz-free", daemon=True).start()

    def _free(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._running)
                letting_go = set(self._to_free)
            try:
                if "results" in letting_go:
                    self.place.caches.clear()
                    gc.collect()
                if "models" in letting_go:
                    self.place.engine.unload()
            except Exception:  # the loop must continue, because jobs wait
                traceback.print_exc()
            with self._changed:
                self._to_free -= letting_go
                self._changed.notify_all()
                if not self._to_free:
                    return

    def _context(self, order: Order, arrival: float, reporter: JobReporter) -> RunContext:
        place, changes = self.place, chosen(order)
        made = partial(
            made_with, place.devices, place.engine.device.dtype, shared_rows=place.shared_rows
        )
        texts = pictures_texts(order, place.registry, made())

        def listen(event: Event) -> None:
            if isinstance(event, (Sampled, Reused)):
                texts["katz"] = made(context.measured.provenance, changes.overrides())
            reporter.listen(event)

        def wrote(file: Path) -> None:
            if reporter.wrote(file):
                self._unkept.add(order.id, file)

        deliver = None if order.client is None else reporter.picture
        context = RunContext(
            place.engine,
            place.folders,
            place.folders.output,
            texts,
            listen,
            on_picture=deliver,
            previews=place.previews
            and order.client is not None
            and order.extra.get("preview_method") != NO_PREVIEWS,
            progress_interval=PACE / 2,  # so that one that just misses PACE delays little
            on_file=wrote,
            types=place.registry,
            changes=changes,
            arrival=arrival,
            due=math.inf if order.due is None else time.monotonic() + order.due - time.time(),
            seconds_after=order.seconds_after,
            client=order.share,
            pack_lock=place.pack_lock,
        )
        return context

    def _run(self, order: Order, arrival: float) -> None:
        """Runs a job. Always reports its end and unregisters it, whatever exception occurs."""
        with self._changed:
            self._changed.wait_for(lambda: not self._to_free or order.id in self._stopped)
            self._running += 1
        try:
            ended = self._ended(order, arrival)
        except BaseException as error:
            ended = Ended("failed", time.time(), internal(error))
            with suppress(Exception):  # packs may have replaced stderr
                traceback.print_exc()
        with self._changed:
            self._running -= 1
            measures = not (self._measured or self._running)
            self._measured = self._measured or measures
        self._forget(order.id)
        self._emit(JobEvent(order.id, ended))
        if measures:
            self._measure()

    def _measure(self) -> None:
        """Measures unknown devices after the first jobs, so that none of these waits for it."""
        try:
            self.place.engine.measure()
        except Exception:  # later plans assume the rates
            traceback.print_exc()

    def _forget(self, job: str) -> None:
        with self._changed:
            del self._contexts[job]
            self._stopped.discard(job)
            self._changed.notify_all()

    def _ended(self, order: Order, arrival: float) -> Ended:
        """Runs a job and returns its `Ended` event, after reporting all other events."""
        began = time.perf_counter()
        reporter = JobReporter(
            self.place.folders.output,
            self.place.shown,
            lambda event: self._emit(JobEvent(order.id, event)),
        )
        self._emit(JobEvent(order.id, Started(time.time())))
        context = self._context(order, arrival, reporter)
        with self._changed:
            self._contexts[order.id] = context
            stopped = order.id in self._stopped
        if stopped:
            context.cancel()
        status, error = self._outcome(order, context, reporter)
        interrupted = reporter.running if status == "cancelled" else None
        reporter.close()
        measured = context.measured
        return Ended(
            status,
            time.time(),
            error,
            reporter.outputs,
            reporter.meta,
            tuple(reporter.executed),
            {"total": time.perf_counter() - began, **measured.seconds},
            measured.predicted,
            measured.provenance.approximations,
            tuple(reporter.reused),
            interrupted,
        )

    def _cache(self, order: Order) -> AbstractContextManager[ResultCache]:
        """Returns the result cache for a job. A job with plan changes starts with an empty one."""
        if chosen(order).overrides():
            return nullcontext(ResultCache("none"))
        return self.place.caches.lent(order.client)

    def _outcome(
        self, order: Order, context: RunContext, reporter: JobReporter
    ) -> tuple[EndStatus, JobError | None]:
        try:
            graph = from_api(order.prompt)
            reporter.behind = partial(only_read_by, graph, order.targets)
            with self._cache(order) as cache:
                result = run_graph(
                    graph,
                    context,
                    cache,
                    order.targets,
                    reporter.listen,
                    process=self.place.process,
                )
            result.raise_failures()
            return "completed", None
        except Cancelled:
            return "cancelled", None
        except KatzError as error:
            if fault := device_fault(error):
                self._request_replacement(f"a device failed in the runner: {fault}")
            failed = reporter.failure or described(error)
            return "failed", replace(failed, message=str(error))
        except BaseException as error:
            traceback.print_exc()
            return "failed", internal(error)
        finally:
            self.place.engine.run_ended(context)
            self.place.pack_lock.ended(context.arrival)


def chosen(order: Order) -> PlanChanges:
    """Returns the plan changes that a job chose."""
    return PlanChanges.read(order.extra.get(CHOICES) or {})


def internal(error: BaseException) -> JobError:
    """Describes an unexpected error for clients."""
    return described(
        RunError(f"internal error: {type(error).__name__}: {text_of(error)}".splitlines()[0])
    )


def only_read_by(graph: Graph, targets: Sequence[str], nodes: Sequence[str]) -> list[str]:
    """Returns the nodes that the targets need only through these nodes, directly or indirectly."""
    sources = {
        identifier: [link.node for _, link in call.links()]
        for identifier, call in graph.nodes.items()
    }
    otherwise = upstream({**sources, **dict.fromkeys(nodes, ())}, targets)
    return [node for node in upstream(sources, targets) if node not in otherwise]


def pictures_texts(order: Order, types: Mapping[str, NodeType], made: str) -> dict[str, str]:
    """Builds the text chunks of a job's pictures: its prompt, the client's texts, and how the
    pictures were `made` (`made_with`). Removes secrets from URLs.
    """
    wanted = order.extra.get("extra_pnginfo")
    texts = {
        name: json.dumps(value)
        for name, value in (wanted if isinstance(wanted, dict) else {}).items()
        if _may_name_chunk(name)
    }
    texts["prompt"] = json.dumps(order.prompt)
    hidden = hide_secrets(texts, order.prompt, types)
    return {**hidden, "katz": made}


def _may_name_chunk(name: Any) -> bool:
    if not isinstance(name, str) or name in OWN_CHUNKS or not 0 < len(name) <= CHUNK_NAME:
        return False
    return name.isprintable() and all(ord(character) < 256 for character in name)
