"""Runs the nodes that a graph's outputs need: in the order of the file, each when its inputs are
ready, unless it is cached.

Iterative and linear in nodes and links. Lazy inputs are evaluated when a node requests them, nodes
may expand to graphs, asynchronous nodes overlap, and the engine runs a step region as one unit.
After a failure, nodes that do not depend on the failed node still run.
"""

from __future__ import annotations

import heapq
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from katz_graph.checks.cycles import describe_cycle, find_cycles
from katz_graph.core.errors import Cancelled, InputError, KatzError, RunError
from katz_graph.core.events import Listener, Reused
from katz_graph.core.graph import Expansion, Graph, Link
from katz_graph.core.messages import show
from katz_graph.executor.graph.calls import Calls, blocker_in, expected_outputs, outputs_of, ui_of
from katz_graph.executor.graph.event_loop import Done, Tasks
from katz_graph.executor.graph.expansion import Splicer, delivered
from katz_graph.executor.graph.expansion_ui import with_inner
from katz_graph.executor.graph.failure import node_failure
from katz_graph.executor.graph.hidden_inputs import HiddenInputs
from katz_graph.executor.graph.liveness import end_reading, free, hold_again, wanted_again
from katz_graph.executor.graph.node_state import NodeState, Outputs, source_of
from katz_graph.executor.graph.reporter import NodeReporter
from katz_graph.executor.graph.result import GraphResult
from katz_graph.executor.graph.result_store import ResultCache, ResultEntry
from katz_graph.executor.graph.sign import sign_deferred, sign_upstream
from katz_graph.host.process_state import ProcessState
from katz_graph.ir.provenance import EXACT, joined
from katz_graph.ir.region import Region
from katz_graph.node import WithUi
from katz_graph.node.scope import ExecutionBlocker, running
from katz_graph.node.types import Context, NodeType
from katz_graph.node.ui_results import written
from katz_graph.planner import region as planner_region
from katz_graph.planner.region import RegionNodes

MODEL_SOCKETS = frozenset(("MODEL", "CLIP", "VAE", "CONTROL_NET", "UPSCALE_MODEL"))

__all__ = ["GraphResult", "Regions", "run_graph"]


class Regions(Protocol):
    """Interface to the planner: finds the nodes of a step region, and binds the region to its input
    values.
    """

    def region_nodes(self, graph: Graph, end: str) -> RegionNodes: ...

    def bind_region(
        self,
        graph: Graph,
        registry: Mapping[str, NodeType],
        nodes: RegionNodes,
        values: Mapping[Link, Any],
        name: str = "",
        shown_as: Mapping[str, str] | None = None,
    ) -> Region: ...


def run_graph(
    graph: Graph,
    context: Context,
    cache: ResultCache,
    targets: Iterable[str] | None = None,
    listener: Listener | None = None,
    regions: Regions = planner_region,
    process: ProcessState | None = None,
) -> GraphResult:
    """Runs `targets`, or else every output node. Node failures are part of the result. Raises
    Cancelled, also for Ctrl-C, and InputError for an unknown target or if no output node exists.
    `process`: shared by concurrent runs of this process.
    """
    registry = context.types
    outputs = [
        identifier
        for identifier, call in graph.nodes.items()
        if call.type in registry and registry[call.type].is_output
    ]
    wanted = outputs if targets is None else list(dict.fromkeys(targets))
    for target in wanted:
        if target not in graph.nodes:
            raise InputError(f"target node {show(target)} is not in the workflow")
    if not wanted:
        raise InputError("the workflow has no output node, so there is nothing to run")
    run = _GraphRun(graph, context, cache, listener, regions, process or ProcessState())
    try:
        return run.run(wanted)
    except KeyboardInterrupt:
        raise Cancelled("cancelled") from None
    finally:
        run.tasks.close()


class _GraphRun:
    def __init__(
        self,
        graph: Graph,
        context: Context,
        cache: ResultCache,
        listener: Listener | None,
        regions: Regions,
        process: ProcessState,
    ) -> None:
        registry = context.types
        self.registry, self.context, self.cache, self.regions = registry, context, cache, regions
        self.file = graph
        self.nodes: dict[str, NodeState] = {}
        self.tasks = Tasks(context)
        self.calls = Calls(
            self.nodes,
            context,
            cache,
            self.tasks,
            HiddenInputs(self.nodes, graph, context),
            process,
        )
        self.reporter = NodeReporter(graph, self.nodes, cache, listener)
        self.ready: list[tuple[tuple[bool, int, int], str]] = []
        self.failures: dict[str, KatzError] = {}
        self.ui: dict[str, Mapping[str, Sequence[Any]]] = {}
        self.overlaps = {
            name for name, kind in registry.items() if inspect.iscoroutinefunction(kind.run)
        }
        self.splicer = Splicer(self.nodes, registry, self.overlaps)
        for number, (identifier, call) in enumerate(graph.nodes.items()):
            order = (call.type not in self.overlaps, number, 0)
            self.nodes[identifier] = NodeState(
                identifier, call, registry.get(call.type), order, identifier, graph.nodes
            )

    def run(self, targets: list[str]) -> GraphResult:
        for target in targets:
            sign_upstream(self.nodes, self.nodes[target], self.calls)
            self.nodes[target].holders += 1
        for target in targets:
            self._demand(self.nodes[target])
        while self.ready or self.tasks:
            self.context.check_cancelled()
            if self.ready:
                _, identifier = heapq.heappop(self.ready)
                self._guarded(self.nodes[identifier], self._advance)
                self.tasks.turn()
            else:
                self.tasks.wait()
            while (ended := self.tasks.finished()) is not None:
                node, results = ended
                self._guarded(node, partial(self._settle_awaited, results))
        self._fail_cycles()
        signatures = [node.signature for node in self.nodes.values() if node.signature is not None]
        self.cache.end_run(signatures, ((node.id, node.call.type) for node in self.nodes.values()))
        self.cache.history = self.reporter.history(self.file.nodes)
        reached = {
            target: outputs
            for target in targets
            if (outputs := self.nodes[target].outputs) is not None
        }
        refused = tuple(target for target in targets if target not in reached)
        return GraphResult(
            reached,
            self.failures,
            refused,
            self.ui,
            tuple(name for name in reached if self.nodes[name].blocked),
        )

    def _guarded(self, node: NodeState, step: Callable[[NodeState], None]) -> None:
        """Runs one step of a node. An exception becomes the node's failure."""
        try:
            step(node)
        except (KeyboardInterrupt, Cancelled):
            raise
        except BaseException as error:
            self._fail(node, error)

    def _advance(self, node: NodeState) -> None:
        """Advances a node with finished sources until it finishes or waits again."""
        if any(source.failed for source in node.sources):
            self._finish(node, None)
        elif node.expanded is not None:
            self._complete(node, outputs_of(node.type, delivered(self.nodes, node)))
        elif not self._waits_for_lazy_inputs(node) and not self._is_cached(node):
            self._start(node)

    def _start(self, node: NodeState) -> None:
        node.why = self.reporter.why_run(node)
        node.began = time.perf_counter()
        self.reporter.started(node)
        if node.call.type in self.overlaps:
            self.tasks.open()
        try:
            results = (
                self.calls.run(node) if node.region is None else self._sampled(node, node.region)
            )
        finally:
            node.seconds = time.perf_counter() - node.began
        if len(results) == 1 and type(results[0]) is tuple and not node.warning:
            self._complete(node, outputs_of(node.type, results))
        elif any(map(inspect.isawaitable, results)):
            self.tasks.start(node, results)
        else:
            self._settle(node, results)

    def _sampled(self, node: NodeState, region: RegionNodes) -> list[Any]:
        """Samples a step region with the engine, once per set of input values."""
        sampled: list[Any] = []
        shown_as = {member: self.nodes[member].origin for member in region.members}
        for entering in self.calls.region_inputs(region):
            blocker = blocker_in(entering)
            if blocker is None:
                bound = self.regions.bind_region(
                    Graph(node.scope), self.registry, region, entering, node.origin, shown_as
                )
                with running(self.context, node.id) as now:
                    sampled.append(self.context.engine.sample(bound, self.context))
                node.sampled = [*node.sampled, *now.sampled]
            else:
                sampled.append(blocker)
        return sampled

    def _settle(self, node: NodeState, results: Sequence[Any]) -> None:
        """Handles the results of a node's runs. Expansions among them run first."""
        node.seconds = time.perf_counter() - node.began
        node.ui = ui_of(results)
        plain = [result.result if isinstance(result, WithUi) else result for result in results]
        for warning in self.calls.warnings(node, plain):
            self.context.warn(f"{self.reporter.name(node)}: {warning}")
        blockers = [result for result in plain if isinstance(result, ExecutionBlocker)]
        message = next(
            (blocker.message for blocker in blockers if blocker.message is not None), None
        )
        if node.type.is_output and message is not None:
            raise RunError(f"blocked: {message}")
        if any(isinstance(result, Expansion) for result in plain):
            self._expand(node, plain)
        elif blockers and len(blockers) == len(plain):
            node.blocked = True
            node.why = (
                f"blocked: {message}" if message is not None else "blocked by one of its inputs"
            )
            self.reporter.blocked(node)
            self._finish(node, expected_outputs(node.type, blockers[0]))
        else:
            self._complete(node, outputs_of(node.type, plain))

    def _settle_awaited(self, results: Done, node: NodeState) -> None:
        self._settle(node, results())

    def _complete(self, node: NodeState, outputs: Outputs) -> None:
        node.shown = node.shown_parts()
        read = (one.provenance for one in (*node.sources, *node.parts))
        node.provenance = joined((*node.sampled, *read))
        if node.signature is not None:
            parts = tuple(part.signature for part in node.parts if part.signature is not None)
            self.cache.put(
                node.signature,
                ResultEntry(
                    outputs,
                    parts,
                    node.ui,
                    node.shown,
                    tuple(self._files(node)),
                    node.provenance,
                ),
            )
        self.reporter.done(node)
        self._announce_models(node, outputs)
        self._finish(node, outputs)

    def _announce_models(self, node: NodeState, outputs: Outputs) -> None:
        """Announces the models that other nodes read to the engine, which may read their files."""
        if MODEL_SOCKETS.isdisjoint(output.socket for output in node.type.outputs):
            return
        links = (link for other in self.nodes.values() for _, link in other.links)
        read = {link.output for link in links if link.node == node.id}
        self.context.engine.prefetch(
            [value for number, value in enumerate(outputs) if number in read], self.context
        )

    def _files(self, node: NodeState) -> Iterator[Path]:
        """Yields the files named in the UI output of a node and of nodes inside its expansion."""
        inner = (shown.ui for shown, *_ in with_inner(node.shown, node.origin, self.file.nodes))
        for ui in (node.ui, *inner):
            yield from () if ui is None else written(self.context, ui)

    def _finish(self, node: NodeState, outputs: Outputs | None) -> None:
        node.outputs, node.failed, node.finished = outputs, outputs is None, True
        if node.ui is not None and outputs is not None:
            self.ui[node.id] = node.ui
        for reader in node.readers:
            reader.waits_for -= 1
            self._ready_if_free(reader)
        node.readers.clear()
        end_reading(self.nodes, node)
        if not node.holders:
            free(node)

    def _ready_if_free(self, node: NodeState) -> None:
        if not node.waits_for:
            heapq.heappush(self.ready, (node.order, node.id))

    def _demand(self, root: NodeState) -> None:
        """Schedules a node and the nodes that it reads, unless they are cached."""
        pending = [root]

        def want(node: NodeState) -> None:
            if not self._taken_from_cache(node):
                hold_again(self.nodes, node)
                pending.extend(self._wait_for(node, self._first_sources(node)))
                self._ready_if_free(node)

        while pending:
            node = pending.pop()
            if not node.wanted:
                node.wanted = True
                self._guarded(node, want)

    def _first_sources(self, node: NodeState) -> list[NodeState]:
        if node.type.ends_region:
            node.region = self.regions.region_nodes(Graph(node.scope), node.id)
            return [source_of(self.nodes, link) for link in node.region.inputs]
        return [
            source_of(self.nodes, value)
            for value in node.read_inputs().values()
            if isinstance(value, Link)
        ]

    def _wait_for(self, node: NodeState, sources: Iterable[NodeState]) -> list[NodeState]:
        """Makes a node wait for its unfinished sources. Returns these sources, which the caller
        must schedule.
        """
        further = dict.fromkeys(sources)
        node.sources = [*node.sources, *further]
        waiting = [source for source in further if not source.finished or wanted_again(source)]
        for source in waiting:
            source.readers.append(node)
        node.waits_for = len(waiting)
        return waiting

    def _waits_for_lazy_inputs(self, node: NodeState) -> bool:
        """Requests the inputs of a lazy node until it needs no more. Returns whether it must
        wait.
        """
        if node.region is not None or node.type.needs is None:
            return False
        while available := set(node.lazy_links()):
            asked = [name for name in self.calls.needs(node) if name in available]
            if not asked:
                return False
            node.asked |= frozenset(asked)
            waiting = self._wait_for(
                node, [source_of(self.nodes, node.inputs[name]) for name in asked]
            )
            for source in waiting:
                self._demand(source)
            if waiting:
                return True
            if any(source.failed for source in node.sources):
                self._ready_if_free(node)
                return True
        return False

    def _is_cached(self, node: NodeState) -> bool:
        """Looks up the result of a deferred node, or of a node equal to one that has run. Returns
        whether it is cached.
        """
        if node.deferred:
            sign_deferred(self.nodes, node, self.calls)
        elif not self.reporter.is_done(node):
            return False
        return self._taken_from_cache(node)

    def _taken_from_cache(self, node: NodeState) -> bool:
        entry = None if node.signature is None else self.cache.get(node.signature)
        if entry is None or node.signature is None:
            return False
        if (lost := entry.lost()) is not None:
            node.lost = lost.name
            return False
        if entry.provenance.approximations and not entry.provenance.permitted(self.context.allowed):
            node.refused = entry.provenance
            return False
        node.provenance = entry.provenance
        if node.provenance != EXACT:
            self.context.report(Reused(node.id, node.provenance))
        node.why = self.reporter.why_cached(node)
        node.ui = entry.ui
        node.shown = entry.shown
        self.reporter.done(node, cached=True)
        for shown, made_for, origin in with_inner(entry.shown, node.origin, self.file.nodes):
            identifier = self.splicer.new_id(made_for, shown.part)
            self.ui[identifier] = shown.ui or {}
            self.reporter.shown(identifier, shown, made_for, origin)
        self._finish(node, entry.outputs)
        return True

    def _expand(self, node: NodeState, results: Sequence[Any]) -> None:
        """Adds the nodes of expansions to the run. `node` then waits for their outputs and for
        output nodes among them.
        """
        roots = self.splicer.put(node, results)
        for root in roots:
            root.holders += 1
            sign_upstream(self.nodes, root, self.calls)
        end_reading(self.nodes, node)
        node.held = roots
        waiting = self._wait_for(node, roots)
        for root in waiting:
            self._demand(root)
        if not waiting:
            self._ready_if_free(node)

    def _fail(self, node: NodeState, error: BaseException) -> None:
        failure = node_failure(self.reporter.name(node), error)
        self.failures[node.id] = failure
        self.reporter.failed(node, failure)
        self._finish(node, None)

    def _fail_cycles(self) -> None:
        """Fails the nodes that still wait when no node is ready: those on a cycle, or downstream of
        one. The error of a cycle names its first node from an expansion, else its first node.
        """
        blocked = [node for node in self.nodes.values() if node.wanted and not node.finished]
        waits = {
            node.id: [source.id for source in node.sources if not source.finished]
            for node in blocked
        }
        calls = {node.id: node.call for node in blocked}
        for cycle in list(find_cycles(waits)):
            made = next((name for name in cycle if self.nodes[name].made), cycle[0])
            self._fail(
                self.nodes[made], InputError(f"is in a cycle: {describe_cycle(cycle, calls)}")
            )
        for node in blocked:
            node.failed = node.finished = True
