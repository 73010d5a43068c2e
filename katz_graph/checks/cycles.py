"""Finds cycles among nodes without recursion, and formats them in the direction of the data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from katz_graph.core.graph import NodeCall
from katz_graph.core.messages import shorten

SHOWN = 8  # nodes of a cycle in a message


def find_cycles(sources: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yields at least one cycle of each connected group of cycles, in the direction of the data,
    starting at its first node in the file. Cycles share no node. Linear.

    `sources` maps each node to the nodes that it reads.
    """
    blocked = _behind_cycles(sources)
    order = {identifier: number for number, identifier in enumerate(blocked)}
    visited: set[str] = set()
    for node in blocked:
        walk: dict[str, None] = {}
        while node not in visited:
            visited.add(node)
            walk[node] = None
            node = next(source for source in sources[node] if source in blocked)
        if node in walk:
            ids = list(walk)
            cycle = ids[ids.index(node) :][::-1]
            first = cycle.index(min(cycle, key=order.__getitem__))
            yield tuple(cycle[first:] + cycle[:first])


def _behind_cycles(sources: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Returns the nodes that no topological order reaches. Each reads at least one other such
    node.
    """
    waiting = {identifier: len(read) for identifier, read in sources.items()}
    readers: dict[str, list[str]] = {}
    for identifier, read in sources.items():
        for source in read:
            readers.setdefault(source, []).append(identifier)
    ready = [identifier for identifier, count in waiting.items() if not count]
    while ready:
        node = ready.pop()
        del waiting[node]
        for reader in readers.get(node, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return waiting


def describe_cycle(cycle: Sequence[str], nodes: Mapping[str, NodeCall]) -> str:
    """Formats `1 (A) -> 2 (B) -> 1 (A)`, shortened in the middle."""
    names = [
        f"{shorten(identifier)} ({shorten(nodes[identifier].type)})"
        for identifier in (*cycle, cycle[0])
    ]
    if len(names) > SHOWN:
        names[SHOWN - 2 : -1] = [f"... {len(names) - SHOWN + 1:,} more ..."]
    return " -> ".join(names)
