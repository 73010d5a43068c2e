"""Plans the samplers of graphs for the jobs' devices, without running a model. Must not know the
queue.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial

from katz_graph.checks.validate import downstream, upstream
from katz_graph.core.errors import Cancelled, KatzError
from katz_graph.core.graph import Graph
from katz_graph.core.recipe import digest
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext, writing_nothing
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.rehearsal import PlanningEngine
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api
from katz_graph.host.process_state import ProcessState
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.node.types import BUILTIN
from katz_graph.packs import Registry
from katz_graph.planner.report.describe import as_json
from katz_graph.web.runner.answering import Answering
from katz_graph.web.runner_client.facts import PlannedGraph, PlanRefusal
from katz_graph.web.runner_client.messages import MakePlan

# limits of one plan, after which no further node of its graph runs: processor time, because jobs
# have priority, and wall-clock time
PROCESSOR_SECONDS, SECONDS = 10.0, 30.0
MAX_CACHED_PLANS = 64  # plans; more if the last answered request has more
WAITING, WAITING_OF_ONE = 16, 12  # requests, in total and per address
# at a higher niceness on busy processors, the thread holds Python's lock while it is not scheduled,
# and the threads that drive jobs wait for it
NICENESS = 5
CLOCK_CHECK_INTERVAL_S = 0.05  # minimum seconds between two checks of the clocks


class Plans:
    """Makes plans in one low-priority thread that jobs do not wait for. A client's new request
    replaces its earlier one. Plans are cached by content, as long as the devices' measurements do
    not change.
    """

    def __init__(
        self,
        engine: DeviceEngine,
        registry: Registry,
        folders: Folders,
        process: ProcessState,
        stop_seconds: float,
        on_hung: Callable[[str], None],
    ) -> None:
        self._engine, self._registry, self._folders = engine, registry, folders
        self._process = process
        hangs_after = SECONDS + stop_seconds
        self.threads = Answering("katz-plans", 1, hangs_after, hangs_after, on_hung, _stand_back)
        self._requests: dict[object, _Request] = {}
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, tuple[object, Program]] = OrderedDict()
        self._reached = 0  # plans of the last answered or cancelled request

    def close(self) -> None:
        """Cancels all requests."""
        with self._lock:
            for request in self._requests.values():
                request.give_up("replaced")
        self.threads.close()

    def enter(self, question: MakePlan) -> Callable[[], PlannedGraph]:
        """Registers a request and cancels the client's earlier one. Returns the function that
        computes the answer, to be called in `threads`.
        """
        compiled = partial(self._compiled, PlanChanges.read(question.changes))
        engine = PlanningEngine(self._engine.device, compiled)
        context = RunContext(engine, self._folders, self._folders.output, types=self._registry)
        request = _Request(engine, context, question.origin)
        key = object() if question.client is None else question.client
        with self._lock:
            if (before := self._requests.get(key)) is not None:
                before.give_up("replaced")
            elif self._has_enough(question.origin):
                request.give_up("busy")
            self._requests[key] = request

        def answer() -> PlannedGraph:
            ended = threading.Event()
            threading.Thread(
                target=_limit, args=(request, _processor_clock(), ended), daemon=True
            ).start()
            try:
                return self._planned(question, request)
            finally:
                ended.set()
                self._forget(request)
                with self._lock:
                    if self._requests.get(key) is request:
                        del self._requests[key]

        return answer

    def _has_enough(self, origin: str) -> bool:
        """Returns whether the limit of requests, in total or per address, is reached."""
        of_one = sum(request.origin == origin for request in self._requests.values())
        return len(self._requests) >= WAITING or of_one >= WAITING_OF_ONE

    def _planned(self, question: MakePlan, request: _Request) -> PlannedGraph:
        graph, context = from_api(question.prompt), request.context
        wanted, notes = self._wanted(graph, question.targets, question.packs)
        try:
            if wanted:
                with writing_nothing(context):
                    found = run_graph(
                        graph, context, ResultCache("none"), wanted, process=self._process
                    )
                notes += [str(error) for error in found.failures.values()]
        except Cancelled:
            pass
        except KatzError as error:
            notes.append(str(error))
        if request.refusal:
            return PlannedGraph(refusal=request.refusal)
        return PlannedGraph(tuple(map(as_json, request.programs)), (*context.warnings, *notes))

    def _wanted(
        self, graph: Graph, targets: Collection[str], packs: bool
    ) -> tuple[list[str], list[str]]:
        """Returns the nodes to run for a plan, which are those that may sample, and notes on
        excluded pack nodes. Pack nodes and their dependents are excluded unless `packs` is set.
        """
        types = self._registry
        sources = {
            name: [link.node for _, link in call.links()] for name, call in graph.nodes.items()
        }
        needed = upstream(sources, targets)
        sources = {name: sources[name] for name in needed}
        foreign = sorted(
            name for name in needed if not packs and types[graph.nodes[name].type].pack != BUILTIN
        )
        left_out = downstream(sources, foreign)
        wanted = [
            name
            for name in graph.nodes
            if name in needed - left_out and self._may_sample(graph.nodes[name].type)
        ]
        stopped = [name for name in needed & left_out if self._may_sample(graph.nodes[name].type)]
        notes = [
            f"node {name} ({graph.nodes[name].type}) belongs to a pack, and runs for a plan only "
            f"on request"
            for name in foreign
        ]
        return wanted, notes if stopped else []

    def _may_sample(self, type: str) -> bool:
        kind = self._registry[type]
        return not kind.is_output and (
            kind.pack != BUILTIN or any(output.socket == "LATENT" for output in kind.outputs)
        )

    def _compiled(self, changes: PlanChanges, region: Region) -> Program:
        key = digest((region, changes))
        measured = self._engine.cluster.devices, dict(self._engine.cluster.links)
        known, program = self._cache.get(key, (None, None))
        if program is None or known != measured:
            program = self._engine.plan(region, changes=changes)
            self._cache[key] = measured, program
        self._cache.move_to_end(key)
        return program

    def _forget(self, request: _Request) -> None:
        """Evicts the oldest plans. Plans of cancelled requests stay, so that retries find them."""
        made = len(request.programs)
        self._reached = max(made, self._reached if request.refusal else 0)
        while len(self._cache) > max(MAX_CACHED_PLANS, self._reached):
            self._cache.popitem(last=False)


class _Request:
    """Holds one request. Any thread may cancel it."""

    def __init__(self, engine: PlanningEngine[Program], context: RunContext, origin: str) -> None:
        self.programs, self.context, self.origin = engine.programs, context, origin
        self.refusal: PlanRefusal = ""

    def give_up(self, why: PlanRefusal) -> None:
        self.refusal = self.refusal or why
        self.context.cancel()


def _limit(request: _Request, used: Callable[[], float], ended: threading.Event) -> None:
    """Cancels a request that exceeds a time limit. `used` returns the processor seconds of its
    thread.
    """
    ends, most = time.monotonic() + SECONDS, used() + PROCESSOR_SECONDS
    while (left := min(ends - time.monotonic(), most - used())) > 0:
        if ended.wait(max(left, CLOCK_CHECK_INTERVAL_S)):
            return
    request.give_up("late")


def _processor_clock() -> Callable[[], float]:
    """Returns a clock of the calling thread's processor seconds for any thread; the wall clock if
    the system has none.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


def _stand_back() -> None:
    """Lowers the priority of the calling thread, if the system supports thread priorities."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
