"""Turns the editor's own format into a workflow, as a browser does before it sends a prompt, and
keeps the layout beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.errors import InputError
from katz_graph.formats.signature import Signatures, unknown_types
from katz_graph.formats.ui_document import UiDocument, parse_ui
from katz_graph.formats.ui_flatten import Literal, Member, Removed, Sources, flatten
from katz_graph.formats.ui_layout import layout_of
from katz_graph.formats.ui_widgets import is_unnamed, widget_values
from katz_graph.formats.workflow import Workflow
from katz_graph.graph import Graph, Link, NodeCall
from katz_graph.messages import listed, one_line, shorten

OWN = "katz"  # the part of `extra` where `ui_write` leaves what the format has no place for
LISTED = 20  # nodes or inputs in a note


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
        raise InputError("is a UI workflow in which no node takes part: all of them are notes, muted or bypassed")
    calls, dropped, beyond = _calls(members, known)
    graph = Graph(calls)
    layout = layout_of(ui, scopes, members)
    own = _mapping(ui.extra.get(OWN))
    graph, layout = _renamed(graph, layout, own.get("ids"))
    notes = [
        *notes,
        unknown_types(graph, known),
        _unnamed(graph),
        f"inputs left open, as their source takes no part: {listed(dropped, LISTED)}" if dropped else "",
        f"values beyond the widgets of their types were left out: {listed(beyond, LISTED)}" if beyond else "",
        _stale(ui),
    ]
    return Workflow(graph, layout, _mapping(own.get("run")), _mapping(own.get("extra")), notes=tuple(filter(None, notes)))


def _calls(members: Sequence[Member], known: Signatures) -> tuple[dict[str, NodeCall], list[str], list[str]]:
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
        if known(node.type) is not None and any(map(is_unnamed, inputs)):  # what the node shows, or another version of it
            inputs = {name: value for name, value in inputs.items() if not is_unnamed(name)}
            beyond.append(one_line(f"node {shorten(member.id)} ({shorten(node.type)})"))
        inputs |= {name: value for (inner, name), value in scope.overridden.items() if inner == node.id}
        for port in node.inputs:
            if port.link is None:
                continue
            source = sources.of(scope, port.link, f"{scope.where(node)}, input {one_line(shorten(port.name))}")
            if isinstance(source, Removed) and not port.widget:
                dropped.append(f"{member.id}.{port.name} ({source.why})")
            elif isinstance(source, (Link, Literal)):
                inputs[port.name] = source.value if isinstance(source, Literal) else source
        if member.id in calls:
            raise InputError(f"node {one_line(shorten(member.id))}: this id stands twice")
        calls[member.id] = NodeCall(node.type, inputs, node.title)
    return calls, dropped, beyond


def _unnamed(graph: Graph) -> str:
    kept = [f"{key} ({call.type})" for key, call in graph.nodes.items() if any(map(is_unnamed, call.inputs))]
    if not kept:
        return ""
    nodes = listed(kept, LISTED)
    return f"values that nothing here gives names for were kept as widget_0, widget_1, ... ({nodes}); katz convert --object-info names them"


def _stale(ui: UiDocument) -> str:
    """Names the links that their target does not hold: they have no effect in an editor either."""
    stale = []
    for graph in (ui.root, *ui.subgraphs.values()):
        held = {port.link for node in graph.nodes.values() for port in node.inputs}
        stale += [link for link, ends in graph.links.items() if link not in held and (not graph.exit or ends.target != graph.exit)]
    return f"links that no input holds have no effect: {listed(stale, LISTED)}" if stale else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _renamed(graph: Graph, layout: dict[str, Any], ids: Any) -> tuple[Graph, dict[str, Any]]:
    """Restores the ids from before the file was written for an editor, which has numbers only."""
    former = {key: name for key, name in _mapping(ids).items() if key in graph.nodes and isinstance(name, str)}
    names = {key: former.get(key, key) for key in graph.nodes}
    if not former or len(set(names.values())) < len(names):
        return graph, layout

    def moved(value: Any) -> Any:
        return Link(names[value.node], value.output) if isinstance(value, Link) else value

    calls = {
        names[key]: replace(call, inputs={name: moved(value) for name, value in call.inputs.items()}) for key, call in graph.nodes.items()
    }
    return Graph(calls), layout | {"nodes": {names[key]: look for key, look in layout.get("nodes", {}).items()}}
