"""Computes each node's signature, its cache key, before the run; for deferred nodes, when their
values are available.

Three kinds of nodes are deferred: lazy nodes, whose result depends only on the inputs that they
request; nodes whose fingerprint needs a linked knob; and readers of deferred nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.core.errors import Cancelled
from katz_graph.core.graph import Link
from katz_graph.executor.graph.calls import Calls, is_per_node
from katz_graph.executor.graph.failure import in_words
from katz_graph.executor.graph.hidden_inputs import sees_graph
from katz_graph.executor.graph.liveness import hold_sources, hold_upstream
from katz_graph.executor.graph.node_state import NodeState, States
from katz_graph.executor.graph.signature import NAN, Signature, Unsignable, node_signature
from katz_graph.planner.region import RegionNodes

OWN_ID = "the node's own id"  # an input name that no node has


def sign_upstream(states: States, root: NodeState, calls: Calls) -> None:
    """Signs a node and all nodes that it may read, sources first, after selecting their inputs. All
    calls together take linear time. Leaves cycles unsigned.
    """
    stack = [root]
    while stack:
        node = stack[-1]
        if node.entered:
            stack.pop()
            if not node.deferred and node.signature is None and not node.unsigned:
                _sign_early(states, node, calls)
                if node.kind is not None and sees_graph(node.kind.hidden):
                    hold_upstream(states, node)
            continue
        node.enter()
        hold_sources(states, node)
        stack += (
            source
            for _, link in node.links
            if (source := states.get(link.node)) is not None and not source.entered
        )


def sign_deferred(states: States, node: NodeState, calls: Calls) -> None:
    """Signs a deferred node after all its sources have finished."""
    if node.region is not None:
        _sign_members(states, node.region)
    node.deferred = False
    if node.type.fingerprint is not None and not _fingerprinted(
        node, calls, early=not node.type.fingerprint_linked
    ):
        return
    _sign(states, node, node.read_inputs())


def _sign_early(states: States, node: NodeState, calls: Calls) -> None:
    kind = node.kind
    if kind is None:
        node.unsigned = "its type is unknown"
        return
    sources = [states[link.node] for _, link in node.links if link.node in states]
    node.deferred = (
        any(source.deferred for source in sources)
        or next(node.lazy_links(), None) is not None
        or (
            kind.fingerprint is not None
            and kind.fingerprint_linked
            and any(_is_knob(node, name) for name, _ in node.links)
        )
    )
    if not node.deferred and (kind.fingerprint is None or _fingerprinted(node, calls, early=True)):
        _sign(states, node, node.inputs)


def _is_knob(node: NodeState, name: str) -> bool:
    port = node.port(name)
    return port is not None and port.knob


def _fingerprinted(node: NodeState, calls: Calls, early: bool) -> bool:
    """Computes the fingerprint. If that fails, returns False: the node is never cached, and the
    user gets a warning if it runs.
    """
    try:
        node.fingerprint = calls.fingerprint(node, early)
        return True
    except Cancelled:
        raise
    except (Exception, SystemExit) as error:
        node.unsigned = "its dependencies could not be determined"
        node.warning = f"{node.unsigned} ({in_words(error)}), so it is never cached"
        return False


def _sign_members(states: States, region: RegionNodes) -> None:
    """Signs the nodes inside a step region by all their inputs, because they never run
    separately.
    """
    for member in region.members:
        node = states[member]
        if node.deferred and member != region.end:
            node.deferred = False
            _sign(states, node, node.inputs)


def _sign(states: States, node: NodeState, inputs: Mapping[str, Any]) -> None:
    """Signs a node. The node is never cached if a source has no signature or a value is
    unsignable.
    """
    sources: dict[str, Signature] = {}
    for value in inputs.values():
        if isinstance(value, Link):
            source = states.get(value.node)
            if source is None or source.signature is None:
                node.unsigned = f"it reads node {value.node}, which is never cached"
                return
            sources[value.node] = source.signature
    if is_per_node(node.type):
        inputs = {**inputs, OWN_ID: node.id}
    try:
        node.signature = node_signature(node.call.type, node.fingerprint, inputs, sources)
    except Unsignable as error:
        always = str(error) == NAN  # only a fingerprint can be NaN, because files contain no NaN
        node.unsigned = (
            "it asks to run every time" if always else f"a value cannot be compared ({error})"
        )
