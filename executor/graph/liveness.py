"""Frees values that no node of the run can read any more, by reference counts, in linear time."""

from __future__ import annotations

from collections.abc import Iterable

from katz_graph.core.errors import InputError
from katz_graph.core.graph import NodeCall
from katz_graph.executor.graph.node_state import NodeState, States


def hold_sources(states: States, node: NodeState) -> None:
    """Adds a reference to each source that a node may read."""
    for _, link in node.links:
        if (source := states.get(link.node)) is not None:
            source.holders += 1
    node.has_read = False


def hold_upstream(states: States, node: NodeState) -> None:
    """Adds a reference to all upstream nodes: a node that sees the graph may link to any."""
    found: dict[str, NodeState] = {}
    pending = [node]
    while pending:
        for _, link in pending.pop().links:
            if link.node not in found and (source := states.get(link.node)) is not None:
                found[link.node] = source
                pending.append(source)
    node.held = list(found.values())
    for source in node.held:
        source.holders += 1


def end_reading(states: States, node: NodeState) -> None:
    """Drops a node's references to its sources and to other nodes, when it has finished reading."""
    pending = [node]
    while pending:
        reader = pending.pop()
        over, reader.held = list(reader.held), ()
        if not reader.has_read:
            reader.has_read = True
            over += (states[link.node] for _, link in reader.links if link.node in states)
            if reader.made:
                reader.scope = {}  # releases the literals of all nodes of the expansion
        pending += release(over)


def release(nodes: Iterable[NodeState]) -> list[NodeState]:
    """Decrements reference counts and frees values at zero. Returns the nodes that no longer need
    to run.
    """
    unneeded = []
    for node in nodes:
        node.holders -= 1
        if not node.holders:
            if node.finished:
                free(node)
            elif not node.wanted:
                unneeded.append(node)
                _forget_literals(node)
    return unneeded


def free(node: NodeState) -> None:
    """Frees the outputs of a finished node."""
    if not node.failed:
        node.outputs, node.freed = None, True
    _forget_literals(node)


def wanted_again(node: NodeState) -> bool:
    """Resets a node as if it had not run, if its outputs were freed. Returns whether they were."""
    if not node.freed:
        return False
    node.freed = node.finished = node.wanted = node.blocked = False
    node.expanded, node.parts, node.region = None, (), None
    return True


def hold_again(states: States, node: NodeState) -> None:
    """Restores the references of a finished or unneeded node that must run after all. Raises
    InputError if inputs are lost.
    """
    if node.has_read:
        if node.made:
            raise InputError("is linked by a later expansion, after its inputs were released")
        hold_sources(states, node)


def _forget_literals(node: NodeState) -> None:
    """Drops the literals of a node in an expansion, which would otherwise live until the run
    ends.
    """
    if node.made:
        node.call = NodeCall(node.call.type, dict(node.links), node.call.title)
        node.inputs = node.call.inputs
