"""Renumbers nodes of subgraphs with duplicate ids, as front ends do when they load a document.
Jobs, events and prompts refer to nodes by these ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from katz_graph.formats.ui_document import UiDocument, UiGraph, UiLink, UiNode

Renames = Mapping[str, str]


def renumbered(document: UiDocument) -> UiDocument:
    """Makes every node id in the document unique. Nodes of the root keep their ids. Among subgraph
    nodes, the first with a free id keeps it; the others get the next free number.
    """
    taken = set(document.root.nodes)
    last = document.last_node
    renames: dict[str, Renames] = {}
    for identifier, graph in document.subgraphs.items():
        renamed: dict[str, str] = {}
        for node in graph.nodes:
            given = node
            if node in taken:
                last += 1
                while str(last) in taken:
                    last += 1
                renamed[node] = given = str(last)
            taken.add(given)
            if given.isdecimal():
                last = max(last, int(given))
        if renamed:
            renames[identifier] = renamed
    if not renames:
        return document
    return replace(
        document,
        root=_with_references(document.root, renames),
        subgraphs={
            identifier: _with_references(_renamed(graph, renames.get(identifier, {})), renames)
            for identifier, graph in document.subgraphs.items()
        },
    )


def _renamed(graph: UiGraph, renames: Renames) -> UiGraph:
    if not renames:
        return graph

    def moved(link: UiLink) -> UiLink:
        return replace(
            link,
            origin=renames.get(link.origin, link.origin),
            target=renames.get(link.target, link.target),
        )

    nodes = (replace(node, id=renames.get(key, key)) for key, node in graph.nodes.items())
    return replace(
        graph,
        nodes=_by_id(nodes),
        links={key: moved(link) for key, link in graph.links.items()},
    )


def _with_references(graph: UiGraph, renames: Mapping[str, Renames]) -> UiGraph:
    """Updates references of subgraph nodes to the renumbered nodes inside."""

    def followed(node: UiNode) -> UiNode:
        inside = renames.get(node.type)
        if not inside or not node.proxies:
            return node
        return replace(
            node,
            proxies=tuple(
                proxy and replace(proxy, node=inside.get(proxy.node, proxy.node))
                for proxy in node.proxies
            ),
        )

    return replace(graph, nodes=_by_id(map(followed, graph.nodes.values())))


def _by_id(nodes: Iterable[UiNode]) -> dict[str, UiNode]:
    return {node.id: node for node in nodes}
