"""Runs what the outputs of a graph need: each node when its inputs are there, in the order of the file, and only if it is not cached.

Iterative and linear in nodes and links. Lazy inputs are evaluated when a node asks for them, nodes may expand to graphs, and a step
region is one unit that the engine runs. A node that fails leaves alone what does not depend on it.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from katz_graph.context import Context
from katz_graph.cycles import describe_cycle, find_cycles
from katz_graph.errors import Cancelled, InputError, KatzError, RunError
from katz_graph.executor.cache import Entry, ResultCache
from katz_graph.executor.events import EventKind, NodeEvent, OnEvent
from katz_graph.executor.failure import node_failure
from katz_graph.executor.node_state import NodeState, Outputs, output_of, source_of, values_of
from katz_graph.executor.signing import sign_late, sign_upstream
from katz_graph.executor.splice import splice
from katz_graph.executor.why import History, explain
from katz_graph.graph import Expansion, Graph, Link
from katz_graph.node import NodeType
from katz_graph.planner import region as planner_region
from katz_graph.planner.region import END, Region, RegionNodes
from katz_graph.wording import listed, node_name, show


@dataclass(frozen=True, slots=True)
class GraphResult:
    """What a run gave: the outputs of the targets that were reached, and an error for each node that failed."""

    outputs: Mapping[str, Outputs]
    failures: Mapping[str, KatzError] = field(default_factory=dict)
    refused: tuple[str, ...] = ()  # targets that were not reached

    def raise_failures(self) -> None:
        """One error for all that failed: InputError if no target was reached and only wrong input stood in the way, else RunError."""
        if not self.refused:
            return
        errors = list(self.failures.values())
        lines = "\n".join(map(str, errors))
        if self.outputs:
            raise RunError(f"{lines}\nsome outputs were refused: node {listed(self.refused)}") from errors[0]
        kind = InputError if all(isinstance(error, InputError) for error in errors) else RunError
        raise kind(lines) from errors[0]


class Regions(Protocol):
    """The planner's part in a run: which nodes form a step region, and the region with values for what enters it."""

    def region_nodes(self, graph: Graph, end: str) -> RegionNodes: ...

    def bind_region(
        self, graph: Graph, registry: Mapping[str, NodeType], nodes: RegionNodes, values: Mapping[Link, Any], name: str = ""
    ) -> Region: ...


def run_graph(
    graph: Graph,
    registry: Mapping[str, NodeType],
    context: Context,
    cache: ResultCache,
    targets: Iterable[str] | None = None,
    on_event: OnEvent | None = None,
    regions: Regions = planner_region,
) -> GraphResult:
    """Run `targets`, or else every output node. Failures of nodes stand in the result; Cancelled is raised, also for Ctrl-C."""
    outputs = [identifier for identifier, call in graph.nodes.items() if call.type in registry and registry[call.type].is_output]
    wanted = outputs if targets is None else list(dict.fromkeys(targets))
    for target in wanted:
        if target not in graph.nodes:
            raise InputError(f"node {show(target)} is to be run, but it is not in the workflow")
    if not wanted:
        raise InputError("the workflow has no output node, so there is nothing to run")
    try:
        return _GraphRun(graph, registry, context, cache, on_event, regions).run(wanted)
    except KeyboardInterrupt:
        raise Cancelled("cancelled") from None


class _GraphRun:
    def __init__(
        self,
        graph: Graph,
        registry: Mapping[str, NodeType],
        context: Context,
        cache: ResultCache,
        on_event: OnEvent | None,
        regions: Regions,
    ) -> None:
        self.registry, self.context, self.cache, self.on_event, self.regions = registry, context, cache, on_event, regions
        self.file = graph
        self.nodes: dict[str, NodeState] = {}
        self.ready: list[tuple[tuple[int, int], str]] = []
        self.failures: dict[str, KatzError] = {}
        self.spliced_names: dict[str, int] = {}
        for number, (identifier, call) in enumerate(graph.nodes.items()):
            self.nodes[identifier] = NodeState(identifier, call, registry.get(call.type), (number, 0), identifier, graph.nodes)

    def run(self, targets: list[str]) -> GraphResult:
        for target in targets:
            sign_upstream(self.nodes, self.nodes[target], self.context)
        for target in targets:
            self._demand(self.nodes[target])
        while self.ready:
            _, identifier = heapq.heappop(self.ready)
            self.context.check_cancelled()
            self._advance(self.nodes[identifier])
        self._fail_cycles()
        self.cache.end_run([node.signature for node in self.nodes.values() if node.signature is not None])
        self.cache.history = self._history(self.file.nodes)
        reached = {target: outputs for target in targets if (outputs := self.nodes[target].outputs) is not None}
        return GraphResult(reached, self.failures, tuple(target for target in targets if target not in reached))

    def _advance(self, node: NodeState) -> None:
        """Take a node whose sources are finished one step on, until it is finished itself or waits again."""
        try:
            if any(source.failed for source in node.sources):
                self._finish(node, None)
            elif node.expanded is not None:
                self._complete(node, tuple(output_of(self.nodes, v) if isinstance(v, Link) else v for v in node.expanded))
            elif not self._waits_for_lazy_inputs(node) and not self._is_cached(node):
                self._execute(node)
        except (KeyboardInterrupt, Cancelled):
            raise
        except (Exception, SystemExit) as error:
            self._fail(node, error)

    def _execute(self, node: NodeState) -> None:
        node.why = self._why(node)
        node.began = time.perf_counter()
        self._tell("start", node)
        try:
            result = self._called(node)
        finally:
            node.seconds = time.perf_counter() - node.began
        if isinstance(result, Expansion):
            self._expand(node, result)
        else:
            self._complete(node, result)

    def _called(self, node: NodeState) -> Any:
        """What a node gives: the engine runs a step region, everything else runs itself. Awaiting async nodes will have its place here."""
        if node.region is not None:
            entering = {link: output_of(self.nodes, link) for link in node.region.inputs}
            region = self.regions.bind_region(Graph(node.scope), self.registry, node.region, entering, node.origin)
            return (self.context.engine.sample(region, self.context),)
        values = values_of(self.nodes, node)
        missing = next((name for name, declared in node.type.inputs.items() if declared.required and name not in node.call.inputs), None)
        if missing is not None:
            raise InputError(f"input {missing} is missing")
        return node.type.run(self.context, values)

    def _complete(self, node: NodeState, result: Any) -> None:
        expected = len(node.type.outputs)
        if not isinstance(result, tuple) or len(result) != expected:
            came = f"{len(result)} outputs" if isinstance(result, tuple) else f"a {type(result).__name__}"
            raise RunError(f"gave {came}, expected {expected} outputs")
        if node.signature is not None:
            parts = (self.nodes[part].signature for part in node.parts)
            self.cache.put(node.signature, Entry(result, tuple(part for part in parts if part is not None)))
        self._tell("done", node)
        self._finish(node, result)

    def _finish(self, node: NodeState, outputs: Outputs | None) -> None:
        node.outputs, node.failed = outputs, outputs is None
        for reader in node.readers:
            reader.waits_for -= 1
            self._ready_if_free(reader)
        node.readers.clear()

    def _ready_if_free(self, node: NodeState) -> None:
        if not node.waits_for:
            heapq.heappush(self.ready, (node.order, node.id))

    def _demand(self, root: NodeState) -> None:
        """Want a node, and with it what it reads, as far as that is not cached."""
        pending = [root]
        while pending:
            node = pending.pop()
            if node.wanted:
                continue
            node.wanted = True
            try:
                if not self._taken_from_cache(node):
                    pending += self._wait_for(node, self._first_sources(node))
                    self._ready_if_free(node)
            except Exception as error:
                self._fail(node, error)

    def _first_sources(self, node: NodeState) -> list[NodeState]:
        if node.type.stage == END:
            node.region = self.regions.region_nodes(Graph(node.scope), node.id)
            return [source_of(self.nodes, link) for link in node.region.inputs]
        return [source_of(self.nodes, value) for value in node.read_inputs().values() if isinstance(value, Link)]

    def _wait_for(self, node: NodeState, sources: Iterable[NodeState]) -> list[NodeState]:
        """Let a node wait for those of its sources that are not finished; returns them, to be demanded."""
        node.sources = list(dict.fromkeys((*node.sources, *sources)))
        waiting = [source for source in node.sources if not source.finished]
        for source in waiting:
            source.readers.append(node)
        node.waits_for = len(waiting)
        return waiting

    def _waits_for_lazy_inputs(self, node: NodeState) -> bool:
        """Ask a lazy node what else it wants, again and again until that is nothing."""
        if node.region is not None or node.type.needs is None:
            return False
        while available := set(node.lazy_links()):
            wanted = node.type.needs(values_of(self.nodes, node)) or ()
            asked = [name for name in wanted if name in available]
            if not asked:
                return False
            node.asked |= frozenset(asked)
            waiting = self._wait_for(node, [source_of(self.nodes, node.call.inputs[name]) for name in asked])
            for source in waiting:
                self._demand(source)
            if waiting:
                return True
            if any(source.failed for source in node.sources):
                self._ready_if_free(node)
                return True
        return False

    def _is_cached(self, node: NodeState) -> bool:
        """Whether a node that could be signed only now has a kept result."""
        if not node.late:
            return False
        sign_late(self.nodes, node, self.context)
        return self._taken_from_cache(node)

    def _taken_from_cache(self, node: NodeState) -> bool:
        entry = None if node.signature is None else self.cache.get(node.signature)
        if entry is None:
            return False
        node.why = "same inputs as before"
        self._tell("cached", node)
        self._finish(node, entry.outputs)
        return True

    def _expand(self, node: NodeState, expansion: Expansion) -> None:
        """Put an expansion's nodes beside the others and let `node` wait for its outputs, and for those that run for their effect."""
        scope, node.expanded = splice(expansion, node.origin, self.nodes, self.spliced_names)
        node.parts = tuple(scope)
        for identifier, call in scope.items():
            order = (node.order[0], len(self.nodes))
            self.nodes[identifier] = NodeState(identifier, call, self.registry.get(call.type), order, node.origin, scope)
        roots = [source_of(self.nodes, value) for value in node.expanded if isinstance(value, Link)]
        roots += [part for name in scope if (part := self.nodes[name]).kind is not None and part.type.is_output]
        for root in roots:
            sign_upstream(self.nodes, root, self.context)
        waiting = self._wait_for(node, roots)
        for root in waiting:
            self._demand(root)
        if not waiting:
            self._ready_if_free(node)

    def _fail(self, node: NodeState, error: BaseException) -> None:
        name = node_name(node.id, node.call.type, node.call.title)
        if node.origin != node.id:
            made_by = self.file.nodes[node.origin]
            name = f"{node_name(node.origin, made_by.type, made_by.title)}, in it {name}"
        failure = node_failure(name, error)
        self.failures[node.id] = failure
        self._tell("failed", node, failure)
        self._finish(node, None)

    def _fail_cycles(self) -> None:
        """Nothing is ready, and yet nodes wait: they stand in a cycle, or behind one."""
        stuck = [node for node in self.nodes.values() if node.wanted and not node.finished]
        waits = {node.id: [source.id for source in node.sources if not source.finished] for node in stuck}
        calls = {node.id: node.call for node in stuck}
        for cycle in list(find_cycles(waits)):
            self._fail(self.nodes[cycle[0]], InputError(f"stands in a cycle: {describe_cycle(cycle, calls)}"))
        for node in stuck:
            node.failed = True

    def _tell(self, kind: EventKind, node: NodeState, error: KatzError | None = None) -> None:
        if self.on_event is not None:
            self.on_event(NodeEvent(kind, node.id, node.call.type, node.call.title, node.origin, node.seconds, node.why, error, node.began))

    def _why(self, node: NodeState) -> str:
        if self.on_event is None:
            return ""
        if node.origin != node.id:
            return f"made by node {node.origin}"
        now = self._history((node.id, *(link.node for _, link in node.links)))
        return explain(node.id, now, self.cache.history, self.cache.policy)

    def _history(self, identifiers: Iterable[str]) -> History:
        nodes = [node for identifier in identifiers if (node := self.nodes[identifier]).entered]
        fingerprints = {node.id: node.fingerprint for node in nodes if node.fingerprint is not None}
        return History(self.file.nodes, {node.id: node.signature for node in nodes}, fingerprints)
