"""Writes a workflow as a file of the editor's own format (v0.4), with places from its layout where
it has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from katz_graph.errors import InputError
from katz_graph.formats.arrange import arranged, columns
from katz_graph.formats.signature import Signatures
from katz_graph.formats.ui import OWN
from katz_graph.formats.ui_draw import EditorDrawing
from katz_graph.formats.ui_flatten import NOTES
from katz_graph.formats.ui_layout import GAP, LOOKS, bounds, pair
from katz_graph.formats.workflow import Workflow
from katz_graph.graph import Graph
from katz_graph.messages import show

PARTS: Mapping[str, type] = {"nodes": Mapping, "notes": list, "groups": list, "view": Mapping}


def to_ui(workflow: Workflow, known: Signatures) -> dict[str, Any]:
    """Writes the UI document of a workflow; reading it gives the graph again. InputError for links
    that lead nowhere, or a malformed layout.
    """
    layout = _checked(workflow.layout)
    drawing = EditorDrawing(workflow.graph, known)
    nodes = dict(zip(workflow.graph.nodes, drawing.nodes, strict=True))
    notes = _numbered(layout["notes"], drawing.ids.values())
    _place(workflow.graph, nodes, notes, layout["nodes"])
    renamed = {str(number): key for key, number in drawing.ids.items() if str(number) != key}
    own = {"ids": renamed, "run": dict(workflow.run), "extra": dict(workflow.extra)}
    own = {name: part for name, part in own.items() if part}
    return {
        "last_node_id": max(node["id"] for node in (*drawing.nodes, *notes)),
        "last_link_id": len(drawing.links),
        "nodes": [*drawing.nodes, *notes],
        "links": drawing.links,
        "groups": layout["groups"],
        "config": {},
        "extra": ({"ds": layout["view"]} if layout["view"] else {}) | ({OWN: own} if own else {}),
        "version": 0.4,
    }


def _place(graph: Graph, nodes: Mapping[str, dict[str, Any]], notes: Iterable[Mapping[str, Any]], looks: Mapping[str, Any]) -> None:
    """Places nodes where the layout has them, the others in columns below."""
    column_of = columns(graph)
    loose: dict[str, tuple[float, float]] = {}
    for order, key in enumerate(sorted(nodes, key=column_of.__getitem__)):
        nodes[key]["order"] = order
    for key, node in nodes.items():
        look = looks.get(key, {})
        node |= {name: look[name] for name in LOOKS if isinstance(look.get(name), type(node.get(name, ""))) and name in look}
        size, place = pair(look.get("size")) or pair(node["size"]), pair(look.get("pos"))
        node["size"] = list(size or ())
        if place:
            node["pos"] = list(place)
        elif size:
            loose[key] = size
    standing = [*(node for key, node in nodes.items() if key not in loose), *notes]
    left, _, _, bottom = bounds(standing)
    for key, corner in arranged(column_of, loose, left, bottom + GAP if standing else 0.0).items():
        nodes[key]["pos"] = corner


def _numbered(notes: Iterable[Any], taken: Iterable[int]) -> list[dict[str, Any]]:
    """Numbers notes with ids that no node has."""
    used = set(taken)
    numbered = []
    for number, note in enumerate(notes):
        if not isinstance(note, Mapping) or note.get("type") not in NOTES:
            raise InputError(f"layout: note {number} is {show(note)}, expected an object with the type {' or '.join(NOTES)}")
        identifier = note.get("id")
        if not isinstance(identifier, int) or isinstance(identifier, bool) or identifier in used or identifier < 0:
            identifier = max(used) + 1
        used.add(identifier)
        numbered.append({**note, "id": identifier, "pos": list(pair(note.get("pos")) or (0, 0))})
    return numbered


def _checked(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a layout. InputError for one that is not of its type: people edit the
    files that layouts come from.
    """
    parts = {name: layout.get(name, kind() if kind is list else {}) for name, kind in PARTS.items()}
    for name, part in parts.items():
        if not isinstance(part, PARTS[name]):
            raise InputError(f"layout: {name} is {show(part)}, expected {'a list' if PARTS[name] is list else 'an object'}")
    for key, look in parts["nodes"].items():
        if not isinstance(look, Mapping):
            raise InputError(f"layout: node {show(key)} is {show(look)}, expected an object with pos and size")
    return parts
