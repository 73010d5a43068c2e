"""Places the nodes of a graph: columns by the longest way from a source, rows in the order of the
file.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from katz_graph.graph import Graph

ACROSS, DOWN = 90.0, 70.0  # pixels between columns and between rows; a node's title stands above it


def columns(graph: Graph) -> dict[str, int]:
    """Returns each node's column, counted from the left: behind all that it reads. Nodes of a cycle
    share one.
    """
    links = nx.DiGraph()
    links.add_nodes_from(graph.nodes)
    links.add_edges_from((link.node, identifier) for identifier, call in graph.nodes.items() for _, link in call.links())
    knots = nx.condensation(links)
    return {
        identifier: column
        for column, generation in enumerate(nx.topological_generations(knots))
        for knot in generation
        for identifier in knots.nodes[knot]["members"]
    }


def arranged(column_of: Mapping[str, int], sizes: Mapping[str, tuple[float, float]], left: float, top: float) -> dict[str, list[float]]:
    """Returns left upper corners by node id; `sizes` are (width, height) in pixels and decide which
    nodes are placed, and in what order.
    """
    members: dict[int, list[str]] = {}
    for identifier in sizes:
        members.setdefault(column_of[identifier], []).append(identifier)
    places: dict[str, list[float]] = {}
    x = left
    for column in sorted(members):
        y = top
        for identifier in members[column]:
            places[identifier] = [x, y]
            y += sizes[identifier][1] + DOWN
        x += max(sizes[identifier][0] for identifier in members[column]) + ACROSS
    return places
