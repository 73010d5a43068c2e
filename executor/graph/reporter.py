"""Reports events of the nodes of a run, names nodes in messages, and explains why they ran."""

from __future__ import annotations

from collections.abc import Iterable

from katz_graph.core.errors import KatzError
from katz_graph.core.events import Event, Listener, NodeBlocked, NodeDone, NodeFailed, NodeStarted
from katz_graph.core.graph import Graph
from katz_graph.core.messages import node_name
from katz_graph.executor.graph.expansion_ui import Shown
from katz_graph.executor.graph.explain import History, explain
from katz_graph.executor.graph.node_state import NodeState, States
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.signature import Signature


class NodeReporter:
    """Reports the events of one run of `file`. `cache` has the history of the previous run."""

    def __init__(
        self, file: Graph, states: States, cache: ResultCache, listener: Listener | None
    ) -> None:
        self._file, self._states, self._cache, self._listener = file, states, cache, listener
        self._done_by: dict[Signature, str] = {}

    def started(self, node: NodeState) -> None:
        self._report(NodeStarted(node.id, node.origin, node.call.type))

    def done(self, node: NodeState, cached: bool = False) -> None:
        if not cached and node.signature is not None:
            self._done_by[node.signature] = node.id
        self._report(
            NodeDone(node.id, node.origin, node.call.type, cached, node.seconds, node.why, node.ui)
        )

    def blocked(self, node: NodeState) -> None:
        self._report(
            NodeBlocked(node.id, node.origin, node.call.type, seconds=node.seconds, why=node.why)
        )

    def failed(self, node: NodeState, error: KatzError) -> None:
        self._report(NodeFailed(node.id, node.origin, node.call.type, node.why, error))

    def shown(self, identifier: str, shown: Shown, made_for: str, origin: str) -> None:
        """Reports the stored UI output of a node inside a cached node's expansion."""
        self._report(
            NodeDone(
                identifier,
                origin,
                shown.type,
                cached=True,
                why=f"made by node {made_for}",
                ui=shown.ui,
            )
        )

    def _report(self, event: Event) -> None:
        if self._listener is not None:
            self._listener(event)

    def is_done(self, node: NodeState) -> bool:
        """Returns whether an equal node has run in this run."""
        return node.signature in self._done_by

    def name(self, node: NodeState) -> str:
        """Names a node for messages, and also the file's node if it is in an expansion."""
        own = node_name(node.id, node.call.type, node.call.title)
        if not node.made:
            return own
        made_by = self._file.nodes[node.origin]
        return f"{node_name(node.origin, made_by.type, made_by.title)}, in it {own}"

    def why_run(self, node: NodeState) -> str:
        if self._listener is None:
            return ""
        if node.made:
            return f"made by node {node.origin}"
        if node.lost:
            return f"its output file {node.lost} was deleted"
        if node.refused.approximations:
            return f"the cached result is approximate, but this run does not allow {node.refused}"
        now = self.history((node.id, *(link.node for _, link in node.links)))
        return explain(node.id, now, self._cache.history, self._cache.policy)

    def why_cached(self, node: NodeState) -> str:
        assert node.signature is not None
        other = self._done_by.get(node.signature)
        why = "same inputs as before" if other is None else f"same inputs as node {other}"
        return f"{why}; approximate: {said}" if (said := str(node.provenance)) else why

    def history(self, identifiers: Iterable[str]) -> History:
        """Returns the cache-key inputs of these nodes, to explain the next run."""
        nodes = [
            node
            for identifier in identifiers
            if (node := self._states.get(identifier)) is not None and node.entered
        ]
        return History(
            self._file.nodes,
            {node.id: node.signature for node in nodes},
            {node.id: node.fingerprint for node in nodes if node.fingerprint is not None},
            {node.id: node.unsigned for node in nodes if node.unsigned},
        )
