"""Gives the nodes of a run their signatures: before it where that is possible, else (late) when the values are there.

Late are lazy nodes, whose result is decided by what they ask for only; nodes whose fingerprint needs a linked knob; and what reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.context import Context
from katz_graph.executor.node_state import NodeState, States, values_of
from katz_graph.executor.signature import Signature, Unsignable, node_signature
from katz_graph.graph import Link
from katz_graph.planner.region import RegionNodes


def sign_upstream(states: States, root: NodeState, context: Context) -> None:
    """Sign a node and all that it reads, sources first. Linear over all calls; a cycle is left unsigned."""
    stack = [root]
    while stack:
        node = stack[-1]
        if node.entered:
            stack.pop()
            if not node.late and node.signature is None:
                _sign_early(states, node, context)
            continue
        node.entered = True
        node.links = list(node.call.links())
        stack += (source for _, link in node.links if (source := states.get(link.node)) is not None and not source.entered)


def sign_late(states: States, node: NodeState, context: Context) -> None:
    """Sign a node that waited for values, now that everything it reads is finished."""
    if node.region is not None:
        _sign_members(states, node.region)
    node.late = False
    inputs = node.read_inputs()
    try:
        if node.type.fingerprint is not None:
            node.fingerprint = node.type.fingerprint(context, values_of(states, node))
    except Exception:  # the node's run will say what is wrong
        return
    node.signature = _signature(states, node, inputs)


def _sign_early(states: States, node: NodeState, context: Context) -> None:
    if node.kind is None:
        return
    fingerprint, declared = node.kind.fingerprint, node.kind.inputs
    sources = [states[link.node] for _, link in node.links if link.node in states]
    node.late = (
        any(source.late for source in sources)
        or next(node.lazy_links(), None) is not None
        or (fingerprint is not None and any(name in declared and declared[name].knob for name, _ in node.links))
    )
    if node.late:
        return
    if fingerprint is not None:
        try:
            node.fingerprint = fingerprint(
                context, {name: value for name, value in node.call.inputs.items() if not isinstance(value, Link)}
            )
        except Exception:  # the node's run will say what is wrong
            return
    node.signature = _signature(states, node, node.call.inputs)


def _sign_members(states: States, region: RegionNodes) -> None:
    """Nodes inside a step region never run on their own: all their inputs decide."""
    for member in region.members:
        node = states[member]
        if node.late and member != region.end:
            node.late = False
            node.signature = _signature(states, node, node.call.inputs)


def _signature(states: States, node: NodeState, inputs: Mapping[str, Any]) -> Signature | None:
    """None when a source or a value cannot be told: such a node is never cached."""
    sources: dict[str, Signature] = {}
    for value in inputs.values():
        if isinstance(value, Link):
            source = states.get(value.node)
            if source is None or source.signature is None:
                return None
            sources[value.node] = source.signature
    try:
        return node_signature(node.call.type, node.fingerprint, inputs, sources)
    except Unsignable:
        return None
