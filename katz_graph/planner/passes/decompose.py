"""Pass *decompose*: splits the costed stages of one evaluation fully by branch, into a
series-parallel tree.

Derives the papers' serial and parallel parts from the graph, so that a rewired network is treated
by the same rule. Reduction: nodes with the same predecessors and successors merge into P,
single-in/single-out neighbours into S, after transitive reduction; what does not reduce stays one
prime node (Valdes, Tarjan, Lawler 1982).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import networkx

from katz_graph.ir.program import Program, Variant
from katz_graph.planner.region import stage_of


@dataclass(frozen=True, slots=True)
class Tree:
    """Holds a leaf (one operation), or children in series (S), in parallel (P), or in an order that
    is neither (prime), such as the ladder of a ControlNet's blocks beside a network's. `edges`: of
    a prime, which child reads which, by number, after transitive reduction.
    """

    kind: Literal["leaf", "S", "P", "prime"]
    leaf: str = ""
    children: tuple[Tree, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        return (
            self.leaf
            if self.kind == "leaf"
            else f"{self.kind}({', '.join(map(str, self.children))})"
        )

    def leaves(self) -> Iterator[str]:
        if self.kind == "leaf":
            yield self.leaf
        for child in self.children:
            yield from child.leaves()

    def fold(self, seconds: Callable[[str], float]) -> float:
        """Returns the time with endless devices and free communication: sum over S, maximum over P,
        the longest path through a prime.
        """
        if self.kind == "leaf":
            return seconds(self.leaf)
        parts = [child.fold(seconds) for child in self.children]
        if self.kind != "prime":
            return max(parts) if self.kind == "P" else sum(parts)
        ends: list[float] = []  # of the children, which stand in topological order
        for number, part in enumerate(parts):
            before = [ends[first] for first, second in self.edges if second == number]
            ends.append(max(before, default=0.0) + part)
        return max(ends)


def decompose(program: Program) -> Program:
    """Fills `trees`, one per variant."""
    return replace(
        program, trees=tuple(tree(dependencies(variant)) for variant in program.variants)
    )


def dependencies(variant: Variant, keep: Callable[[str], bool] | None = None) -> networkx.DiGraph:
    """Returns the dependencies of the costed operations; contracts operations without cost."""
    graph = networkx.DiGraph()
    costed = {operation.id: stage_of(operation).costed for operation in variant.operations}
    sources: dict[str, set[str]] = {}
    for operation in variant.operations:
        needed: set[str] = set()
        for _, ref in operation.references():
            if ref.operation in costed:
                needed |= {ref.operation} if costed[ref.operation] else sources[ref.operation]
        sources[operation.id] = needed
        if costed[operation.id]:
            graph.add_node(operation.id)
            graph.add_edges_from((source, operation.id) for source in sorted(needed))
    return graph


def tree(graph: networkx.DiGraph) -> Tree:
    """Decomposes an acyclic graph into a series-parallel tree; what hangs together nowhere is
    parallel.
    """
    apart = [_part(graph, names) for names in networkx.weakly_connected_components(graph)]
    if len(apart) > 1:
        return _joined("P", [tree(part) for part in apart])
    reduced = networkx.transitive_reduction(graph)
    trees: dict[int, Tree] = {
        number: Tree("leaf", leaf=name) for number, name in enumerate(graph.nodes)
    }
    numbers = {name: number for number, name in enumerate(graph.nodes)}
    work = networkx.relabel_nodes(reduced, numbers)
    work.add_nodes_from(trees)
    while len(work) > 1 and (_merge_parallel(work, trees) or _merge_series(work, trees)):
        pass
    order = list(networkx.lexicographical_topological_sort(work))
    if len(order) == 1:
        return trees[order[0]]
    place = {number: index for index, number in enumerate(order)}
    edges = sorted((place[first], place[second]) for first, second in work.edges)
    return Tree("prime", children=tuple(trees[number] for number in order), edges=tuple(edges))


def _part(graph: networkx.DiGraph, names: set[str]) -> networkx.DiGraph:
    """Returns a part of a graph with its nodes in the graph's order."""
    part = networkx.DiGraph()
    part.add_nodes_from(name for name in graph if name in names)
    part.add_edges_from((first, second) for first, second in graph.edges if first in names)
    return part


def _merge_parallel(work: networkx.DiGraph, trees: dict[int, Tree]) -> bool:
    groups: dict[tuple[frozenset[int], frozenset[int]], list[int]] = {}
    for node in sorted(work):
        groups.setdefault((frozenset(work.pred[node]), frozenset(work.succ[node])), []).append(node)
    for group in groups.values():
        if len(group) > 1:
            _replace(work, trees, group, _joined("P", [trees[node] for node in group]))
            return True
    return False


def _merge_series(work: networkx.DiGraph, trees: dict[int, Tree]) -> bool:
    for first in sorted(work):
        if work.out_degree(first) == 1:
            (second,) = work.succ[first]
            if work.in_degree(second) == 1:
                _replace(work, trees, [first, second], _joined("S", [trees[first], trees[second]]))
                return True
    return False


def _joined(kind: Literal["S", "P"], parts: list[Tree]) -> Tree:
    """Joins parts under S or P, which are associative: takes up children of the same kind."""
    children = [
        child for part in parts for child in (part.children if part.kind == kind else (part,))
    ]
    return Tree(kind, children=tuple(children))


def _replace(
    work: networkx.DiGraph, trees: dict[int, Tree], group: list[int], joined: Tree
) -> None:
    kept = group[0]
    before = {node for member in group for node in work.pred[member]} - set(group)
    after = {node for member in group for node in work.succ[member]} - set(group)
    work.remove_nodes_from(group)
    work.add_node(kept)
    work.add_edges_from((node, kept) for node in before)
    work.add_edges_from((kept, node) for node in after)
    trees[kept] = joined
