"""Pass *decompose*: converts the costed stages of one evaluation to a series-parallel tree, with
one leaf per stage and branch.

Derives the papers' serial and parallel parts from the graph, so the rule also holds for rewired
networks. After transitive reduction, merges nodes with the same predecessors and successors into P,
and single-in/single-out neighbours into S. An irreducible graph becomes one prime node (Valdes,
Tarjan, Lawler 1982).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import networkx

from katz_graph.ir.program import Program, Variant
from katz_graph.ir.tree import Tree
from katz_graph.planner.region import stage_of


def decompose(program: Program) -> Program:
    """Sets `trees`, one per variant."""
    return replace(
        program, trees=tuple(tree(dependencies(variant)) for variant in program.variants)
    )


def dependencies(variant: Variant) -> networkx.DiGraph:
    """Returns the dependency graph of the costed operations; contracts operations without cost."""
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
    """Decomposes an acyclic graph into a series-parallel tree; disconnected parts are parallel."""
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
    """Returns a subgraph with its nodes in the graph's order."""
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
    """Joins parts under S or P. Both are associative, so children of the same kind are inlined."""
    children = [
        child for part in parts for child in (part.children if part.kind == kind else (part,))
    ]
    return Tree(kind, children=tuple(children))


def _replace(
    work: networkx.DiGraph, trees: dict[int, Tree], group: list[int], joined: Tree
) -> None:
    merged = group[0]
    before = {node for member in group for node in work.pred[member]} - set(group)
    after = {node for member in group for node in work.succ[member]} - set(group)
    work.remove_nodes_from(group)
    work.add_node(merged)
    work.add_edges_from((node, merged) for node in before)
    work.add_edges_from((merged, node) for node in after)
    trees[merged] = joined
