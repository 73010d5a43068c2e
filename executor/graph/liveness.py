"""Frees the values of a run that nothing may read any more: reference counts, linear over a run."""

from __future__ import annotations

from collections.abc import Iterable

from katz_graph.core.errors import InputError
from katz_graph.core.graph import NodeCall
from katz_graph.executor.graph.node_state import NodeState, States


def hold_sources(states: States, node: NodeState) -> None:
    """Adds a reference to each source of a node that was entered: it may read them."""
    for _, link in node.links:
        if (source := states.get(link.node)) is not None:
            source.holders += 1
    node.has_read = False


def hold_upstream(states: States, node: NodeState) -> None:
    """Adds a reference to all nodes upstream: code that sees the graph may link to them."""
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
    """Drops the references of a node that has read all that it ever will, to its sources and to
    what else it held.
    """
    pending = [node]
    while pending:
        reader = pending.pop()
        over, reader.held = list(reader.held), ()
        if not reader.has_read:
            reader.has_read = True
            over += (states[link.node] for _, link in reader.links if link.node in states)
            if reader.made:
                reader.scope = {}  # it holds the literals of all nodes of the expansion
        pending += let_go(over)


def let_go(nodes: Iterable[NodeState]) -> list[NodeState]:
    """Decrements reference counts, frees values at zero. Returns nodes that now never
    need to run.
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
    """Resets a node whose outputs were freed, as if it had not run; returns whether they were."""
    if not node.freed:
        return False
    node.freed = node.finished = node.wanted = node.blocked = False
    node.expanded, node.parts, node.region = None, (), None
    return True


def hold_again(states: States, node: NodeState) -> None:
    """Restores the references of a node that was over, or that nobody needed, and is to run after
    all. InputError when what it would read is gone.
    """
    if node.has_read:
        if node.made:
            raise InputError(
                "is linked to by a later expansion, when its inputs are no longer there"
            )
        hold_sources(states, node)


def _forget_literals(node: NodeState) -> None:
    """Drops the literals of a node in an expansion, which would live as long as the run."""
    if node.made:
        node.call = NodeCall(node.call.type, dict(node.links), node.call.title)
        node.inputs = node.call.inputs
