"""Turns the editor's own format into a workflow, as a browser does before it sends a prompt, and
keeps the layout beside it: places, sizes, colours, notes and groups.

A layout is `{"nodes": {id: {pos, size, ...}}, "notes": [...], "groups": [...], "view": {...}}`. A
subgraph's members stand as one block below the rest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.errors import InputError
from katz_graph.formats.signature import Signatures, unknown_types
from katz_graph.formats.ui_document import UiDocument, parse_ui
from katz_graph.formats.ui_flatten import NOTES, Literal, Member, Removed, Scope, Sources, flatten
from katz_graph.formats.ui_widgets import is_unnamed, widget_values
from katz_graph.formats.workflow import Workflow
from katz_graph.graph import Graph, Link, NodeCall
from katz_graph.messages import listed, one_line, shorten

OWN = "katz"  # the part of `extra` where `ui_write` leaves what the format has no place for
LISTED = 20  # nodes or inputs in a note
LOOKS = ("pos", "size", "flags", "color", "bgcolor", "shape", "properties")
GAP = 100.0  # pixels between blocks
TITLE = 60.0  # of a group, above its first node
PLAIN = (300.0, 120.0)  # size of a node that states none
FAR = 1e9  # pixels; no node stands there


def from_ui(document: Mapping[str, Any], known: Signatures) -> Workflow:
    """Reads the workflow of a parsed UI document (v0.4 or v1.0). InputError with a line for each
    malformed part.
    """
    ui = parse_ui(document)
    if not ui.root.nodes:
        raise InputError("is a UI workflow that holds no nodes")
    notes: list[str] = []
    scopes, members = flatten(ui, notes)
    if not members:
        raise InputError(
            "is a UI workflow in which no node takes part: all of them are notes, muted or bypassed"
        )
    calls, dropped, beyond = _calls(members, known)
    graph = Graph(calls)
    layout = layout_of(ui, scopes, members)
    own = _mapping(ui.extra.get(OWN))
    graph, layout = _renamed(graph, layout, own.get("ids"))
    notes = [
        *notes,
        unknown_types(graph, known),
        _unnamed(graph),
        f"inputs left open, as their source takes no part: {listed(dropped, LISTED)}"
        if dropped
        else "",
        f"values beyond the widgets of their types were left out: {listed(beyond, LISTED)}"
        if beyond
        else "",
        _stale(ui),
    ]
    return Workflow(
        graph,
        layout,
        _mapping(own.get("run")),
        _mapping(own.get("extra")),
        notes=tuple(filter(None, notes)),
    )


def _calls(
    members: Sequence[Member], known: Signatures
) -> tuple[dict[str, NodeCall], list[str], list[str]]:
    """Returns the nodes; the inputs whose link ends at a node that takes no part, with the reason;
    nodes with more values than widgets.
    """
    sources = Sources(known)
    calls: dict[str, NodeCall] = {}
    dropped: list[str] = []
    beyond: list[str] = []
    for member in members:
        node, scope = member.node, member.scope
        inputs: dict[str, Any] = widget_values(node, known(node.type))
        # what the node shows, or another version of it
        if known(node.type) is not None and any(map(is_unnamed, inputs)):
            inputs = {name: value for name, value in inputs.items() if not is_unnamed(name)}
            beyond.append(one_line(f"node {shorten(member.id)} ({shorten(node.type)})"))
        inputs |= {
            name: value for (inner, name), value in scope.overridden.items() if inner == node.id
        }
        for port in node.inputs:
            if port.link is None:
                continue
            source = sources.of(
                scope, port.link, f"{scope.where(node)}, input {one_line(shorten(port.name))}"
            )
            if isinstance(source, Removed) and not port.widget:
                dropped.append(f"{member.id}.{port.name} ({source.why})")
            elif isinstance(source, (Link, Literal)):
                inputs[port.name] = source.value if isinstance(source, Literal) else source
        if member.id in calls:
            raise InputError(f"node {one_line(shorten(member.id))}: this id stands twice")
        calls[member.id] = NodeCall(node.type, inputs, node.title)
    return calls, dropped, beyond


def _unnamed(graph: Graph) -> str:
    kept = [
        f"{key} ({call.type})"
        for key, call in graph.nodes.items()
        if any(map(is_unnamed, call.inputs))
    ]
    if not kept:
        return ""
    nodes = listed(kept, LISTED)
    return (
        "values that nothing here gives names for were kept as widget_0, widget_1, ... "
        f"({nodes}); katz convert --object-info names them"
    )


def _stale(ui: UiDocument) -> str:
    """Names the links that their target does not hold: they have no effect in an editor either."""
    stale = []
    for graph in (ui.root, *ui.subgraphs.values()):
        held = {port.link for node in graph.nodes.values() for port in node.inputs}
        stale += [
            link
            for link, ends in graph.links.items()
            if link not in held and (not graph.exit or ends.target != graph.exit)
        ]
    return f"links that no input holds have no effect: {listed(stale, LISTED)}" if stale else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _renamed(graph: Graph, layout: dict[str, Any], ids: Any) -> tuple[Graph, dict[str, Any]]:
    """Restores the ids from before the file was written for an editor, which has numbers only."""
    former = {
        key: name
        for key, name in _mapping(ids).items()
        if key in graph.nodes and isinstance(name, str)
    }
    names = {key: former.get(key, key) for key in graph.nodes}
    if not former or len(set(names.values())) < len(names):
        return graph, layout

    def moved(value: Any) -> Any:
        return Link(names[value.node], value.output) if isinstance(value, Link) else value

    calls = {
        names[key]: replace(
            call, inputs={name: moved(value) for name, value in call.inputs.items()}
        )
        for key, call in graph.nodes.items()
    }
    return Graph(calls), layout | {
        "nodes": {names[key]: look for key, look in layout.get("nodes", {}).items()}
    }


def layout_of(
    document: UiDocument, scopes: Sequence[Scope], members: Iterable[Member]
) -> dict[str, Any]:
    """Builds the layout of a UI document, for the flat graph of its members."""
    by_scope: dict[str, list[Member]] = {scope.prefix: [] for scope in scopes}
    for member in members:
        by_scope[member.scope.prefix].append(member)
    nodes = {
        member.id: _look(member.node.raw) for of_scope in by_scope.values() for member in of_scope
    }
    notes = [dict(node.raw) for node in document.root.nodes.values() if node.type in NOTES]
    groups = [dict(group) for group in document.groups]
    left, _, _, bottom = bounds(
        [*(nodes[member.id] for member in by_scope[""]), *map(_look, notes)]
    )
    for scope in scopes[1:]:
        looks = [nodes[member.id] for member in by_scope[scope.prefix]]
        if looks:
            x, y, right, lowest = bounds(looks)
            shift = left - x, bottom + GAP + TITLE - y
            for look in looks:
                look["pos"] = [look["pos"][0] + shift[0], look["pos"][1] + shift[1]]
            bounding = [left - 20, bottom + GAP, right - x + 40, lowest - y + TITLE + 20]
            groups.append(
                {"title": scope.graph.name, "bounding": bounding, "color": "#3f789e", "flags": {}}
            )
            bottom = bounding[1] + bounding[3]
    view = document.extra.get("ds")
    layout = {
        "nodes": nodes,
        "notes": notes,
        "groups": groups,
        "view": view if isinstance(view, Mapping) else {},
    }
    return {name: part for name, part in layout.items() if part}


def bounds(looks: Iterable[Mapping[str, Any]]) -> tuple[float, float, float, float]:
    """Returns left, top, right and bottom of the looks that have a `pos`."""
    boxes = [(*look["pos"], *(pair(look.get("size")) or PLAIN)) for look in looks]
    if not boxes:
        return 0.0, 0.0, 0.0, 0.0
    return (
        min(b[0] for b in boxes),
        min(b[1] for b in boxes),
        max(b[0] + b[2] for b in boxes),
        max(b[1] + b[3] for b in boxes),
    )


def pair(value: Any) -> tuple[float, float] | None:
    """Returns two finite numbers, or None; old files have them as {"0": x, "1": y}."""
    numbers = [value.get("0"), value.get("1")] if isinstance(value, Mapping) else value
    if not isinstance(numbers, (list, tuple)) or len(numbers) < 2:
        return None
    first, second = numbers[:2]
    sound = all(
        isinstance(n, (int, float))
        and not isinstance(n, bool)
        and math.isfinite(n)
        and abs(n) < FAR
        for n in (first, second)
    )
    return (first, second) if sound else None


def _look(raw: Mapping[str, Any]) -> dict[str, Any]:
    look = {name: raw[name] for name in LOOKS if raw.get(name) not in (None, {}, [])}
    return look | {
        "pos": list(pair(raw.get("pos")) or (0.0, 0.0)),
        "size": list(pair(raw.get("size")) or PLAIN),
    }
