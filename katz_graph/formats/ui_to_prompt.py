"""Converts a saved document to the graph that a front end would send for it.

1. Group nodes become subgraphs (`front_end/group_nodes`), and duplicate ids are renumbered
   (`front_end/node_ids`).
2. Subgraphs are replaced by their members, with the values of promoted widgets
   (`front_end/promoted`, `ui_flatten`). Nodes that are muted, bypassed, or exist only in the
   browser (`front_end/browser_nodes`) are not sent.
3. Each value is assigned to its widget (`ui_widgets`).
4. One alternative of `{a|b}` in a prompt is sent, and comments are removed
   (`front_end/prompt_text`). Patterns in file names are expanded (`front_end/file_names`). Values
   of promoted widgets are sent unchanged.

A graph in API format has already passed these steps, and stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from random import SystemRandom
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.messages import listed, one_line, shorten
from katz_graph.formats.front_end import file_names
from katz_graph.formats.front_end.added_widgets import completed
from katz_graph.formats.front_end.browser_nodes import came_from_a_server
from katz_graph.formats.front_end.group_nodes import with_subgraphs
from katz_graph.formats.front_end.node_ids import renumbered
from katz_graph.formats.front_end.promoted import Own, Promotions
from katz_graph.formats.front_end.prompt_text import Pick, sent_text
from katz_graph.formats.signature import Signature, Signatures, all_widgets, unknown_types
from katz_graph.formats.ui_document import UiDocument, UiGraph, UiNode, parse_ui
from katz_graph.formats.ui_flatten import Literal, Member, Removed, Sources, flatten
from katz_graph.formats.ui_layout import layout_of
from katz_graph.formats.ui_widgets import is_unnamed, widget_values
from katz_graph.formats.workflow import Workflow

OWN = "katz"  # the part of `extra` for data that the format cannot express
SENT = "sent"  # key in that part: typed texts -> the different texts to send
IDS_STAY = "ids_stay"  # flag in that part: the sender refers to nodes by their ids
LISTED = 20  # nodes or inputs listed in a note


@dataclass(frozen=True, slots=True)
class Sending:
    """The values determined each time a document is sent: the current time, and the selection of
    alternatives.
    """

    now: datetime
    pick: Pick


def sending_now() -> Sending:
    return Sending(datetime.now(), SystemRandom().randrange)


def prompt_from_ui(
    document: Mapping[str, Any], known: Signatures, sending: Sending | None = None
) -> Workflow:
    """Converts a parsed UI document (v0.4 or v1.0) to a workflow. Without `sending`, texts stay as
    typed. InputError with a line per malformed part.
    """
    own = _mapping(_mapping(document.get("extra")).get(OWN))
    ids_stay = own.get(IDS_STAY) is True
    ui = parse_ui(with_subgraphs(document, known, ids_stay))
    if not ui.root.nodes:
        raise InputError("is a UI workflow that has no nodes")
    if not ids_stay:
        ui = renumbered(ui)
    notes: list[str] = []
    promotions = Promotions(ui)
    scopes, members = flatten(ui, promotions, notes)
    if not members:
        raise InputError(
            "is a UI workflow without active nodes: all of them are notes, muted or bypassed"
        )
    sent = _mapping(own.get(SENT))
    calls = _Calls(promotions, members, known, sending, sent)
    graph = Graph(calls.sent())
    members = [member for member in members if member.id in graph.nodes]
    layout = layout_of(ui, scopes, members)
    graph, layout = _renamed(graph, layout, own.get("ids"))
    notes += [*calls.notes(), unknown_types(graph, known), _unnamed(graph), _stale(ui)]
    return Workflow(
        graph,
        layout,
        _mapping(own.get("run")),
        _mapping(own.get("extra")),
        notes=tuple(filter(None, notes)),
        typed=sent if sending is None else None,
    )


class _Calls:
    """Builds the node calls of a document's members, and collects the omitted parts."""

    def __init__(
        self,
        promotions: Promotions,
        members: Sequence[Member],
        known: Signatures,
        sending: Sending | None,
        texts: Mapping[str, Any],
    ) -> None:
        self.members, self.known = members, known
        self.sending, self.texts = sending, texts
        self.sources = Sources(known, promotions)
        self.open: list[str] = []  # inputs linked to a node that is not sent
        self.beyond: list[str] = []  # nodes with more values than widgets
        self.lost: list[str] = []  # promoted values without a widget inside
        self.unsent: list[str] = []  # nodes that probably exist only in the browser
        self.value_of = cache(lambda name, widget: _value_of(promotions, known, name, widget))
        self.prompts = cache(lambda node_type: _prompts(known(node_type)))

    def sent(self) -> dict[str, NodeCall]:
        calls: dict[str, NodeCall] = {}
        for member in self.members:
            if member.id in calls:
                raise InputError(f"node {one_line(shorten(member.id))}: this id occurs twice")
            calls[member.id] = NodeCall(member.node.type, self._inputs(member), member.node.title)
        return self._without_browsers_own(calls)

    def notes(self) -> Iterator[str]:
        """Yields a line for each kind of omitted part."""
        for found, why in (
            (self.open, "inputs left open, because their source is inactive"),
            (self.beyond, "values beyond the widgets of their types were left out"),
            (self.lost, "values on subgraphs were left out, because no node inside has the widget"),
            (self.unsent, "nodes that seem to exist only in the browser were left out"),
        ):
            if found:
                yield f"{why}: {listed(found, LISTED)}"

    def _inputs(self, member: Member) -> dict[str, Any]:
        node, scope = member.node, member.scope
        inputs: dict[str, Any] = widget_values(node, self.known(node.type))
        # surplus values: display data, or values of another version of the type
        if self.known(node.type) is not None and any(map(is_unnamed, inputs)):
            inputs = {name: value for name, value in inputs.items() if not is_unnamed(name)}
            self.beyond.append(one_line(f"node {shorten(member.id)} ({shorten(node.type)})"))
        inputs = {name: self._as_sent(node, name, value) for name, value in inputs.items()}
        shown = {
            name: value for (inner, name), value in scope.overridden.items() if inner == node.id
        }
        for name in [name for name in shown if not self._has(node, name, inputs)]:
            self.lost.append(one_line(f"{shorten(member.id)}.{shorten(name)}"))
            del shown[name]
        inputs |= shown
        for port in node.inputs:
            if port.link is None or port.name in shown:
                continue
            source = self.sources.of(
                scope, port.link, f"{scope.where(node)}, input {one_line(shorten(port.name))}"
            )
            if isinstance(source, Removed) and not port.widget:
                self.open.append(f"{member.id}.{port.name} ({source.why})")
            elif isinstance(source, Link):
                inputs[port.name] = source
            elif isinstance(source, Literal):
                inputs[port.name] = (
                    source.value
                    if source.promoted
                    else self._as_sent(node, port.name, source.value, source.patterns)
                )
        return completed(node.type, inputs)

    def _has(self, node: UiNode, name: str, inputs: Mapping[str, Any]) -> bool:
        """Returns whether a node may have a widget of this name."""
        signature = self.known(node.type)
        return (
            signature is None
            or name in inputs
            or any(port.name == name for port in node.inputs)
            or any(slot.name == name for slot in all_widgets(signature.widgets))
        )

    def _as_sent(self, node: UiNode, name: str, value: Any, patterns: bool = False) -> Any:
        """Returns the value to send for a widget's value. `patterns`: expand file name patterns in
        all widgets.
        """
        sending = self.sending
        if sending is None or not isinstance(value, str):
            return value
        if isinstance(self.texts.get(value), str):
            return self.texts[value]
        if patterns or _is_file_name(node.type, name):
            value = file_names.filled_in(value, self.value_of, sending.now)
        return sent_text(value, sending.pick) if name in self.prompts(node.type) else value

    def _without_browsers_own(self, calls: dict[str, NodeCall]) -> dict[str, NodeCall]:
        """Omits nodes that no server had described when the file was saved, unless another node
        reads them.
        """
        candidates = _unnoted(self.members, self.known)
        while candidates:
            read = {link.node for call in calls.values() for _, link in call.links()}
            spare = [key for key in candidates if key not in read]
            if not spare:
                break
            self.unsent += [
                one_line(f"{shorten(key)} ({shorten(calls[key].type)})") for key in spare
            ]
            calls = {key: call for key, call in calls.items() if key not in spare}
            candidates = [key for key in candidates if key in calls]
        return calls


def is_rewritten(node_type: str, name: str, text: str, signature: Signature | None) -> bool:
    """Returns whether a text may be changed when it is sent. Every text of an unknown type counts
    as a possible prompt.
    """
    if _is_file_name(node_type, name):
        return file_names.filled_in(text, lambda *_: "", datetime.min) != text
    may_be_prompt = signature is None or name in _prompts(signature)
    return may_be_prompt and sent_text(text, lambda _: 0) != text


def _is_file_name(node_type: str, name: str) -> bool:
    return name == file_names.WIDGET and node_type in file_names.SAVERS


def _prompts(signature: Signature | None) -> frozenset[str]:
    slots = all_widgets(signature.widgets) if signature else ()
    return frozenset(slot.name for slot in slots if slot.dynamic_prompts)


def _unnoted(members: Sequence[Member], known: Signatures) -> list[str]:
    """Lists the members of unknown types that no server had described to the front end. Empty if
    the front end did not record this for known types either, as in early versions.
    """
    judged = [member for member in members if member.node.type not in file_names.SAVERS]
    noted = {
        member.id for member in judged if came_from_a_server(member.node.raw.get("properties"))
    }
    common = [member.id for member in judged if known(member.node.type) is not None]
    if not common or not noted.issuperset(common):
        return []
    return [
        member.id for member in judged if member.id not in noted and known(member.node.type) is None
    ]


def _value_of(promotions: Promotions, known: Signatures, name: str, widget: str) -> str | None:
    """Returns the value of a widget of the first node with this name, matched by the server's name,
    then by the title.
    """
    ui = promotions.document
    nodes = list(_all_nodes(ui))
    tests: tuple[Callable[[UiNode], bool], ...] = (
        lambda node: _mapping(node.raw.get("properties")).get("Node name for S&R") == name,
        lambda node: _title(node, known) == name,
    )
    found = next((node for test in tests for node in nodes if test(node)), None)
    if found is None:
        return None
    inside = ui.subgraphs.get(found.type)
    if inside is not None:
        given = promotions.values(found, inside, [], "")
        values = {to.name: value for to, value in given.items() if isinstance(to, Own)}
    else:
        values = widget_values(found, known(found.type))
    return file_names.as_text(values[widget]) if widget in values else None


def _title(node: UiNode, known: Signatures) -> str:
    signature = known(node.type)
    return node.title or (signature.title if signature else "") or node.type


def _all_nodes(ui: UiDocument) -> Iterator[UiNode]:
    """Yields the nodes of all graphs in a front end's order: the nodes of a subgraph precede its
    node.
    """
    seen: set[str] = set()
    pending: list[tuple[UiNode | None, Iterator[UiNode]]] = [(None, _nodes_of(ui.root))]
    while pending:
        owner, rest = pending[-1]
        node = next(rest, None)
        if node is None:
            pending.pop()
            if owner is not None:
                yield owner
        elif node.type in ui.subgraphs and node.type not in seen:
            seen.add(node.type)
            pending.append((node, _nodes_of(ui.subgraphs[node.type])))
        else:
            yield node


def _nodes_of(graph: UiGraph) -> Iterator[UiNode]:
    return iter(graph.nodes.values())


def _unnamed(graph: Graph) -> str:
    unnamed = [
        f"{key} ({call.type})"
        for key, call in graph.nodes.items()
        if any(map(is_unnamed, call.inputs))
    ]
    if not unnamed:
        return ""
    nodes = listed(unnamed, LISTED)
    return (
        f"values without known names were stored as widget_0, widget_1, ... ({nodes}); katz "
        "convert --object-info names them"
    )


def _stale(ui: UiDocument) -> str:
    """Lists the links that no input refers to; editors ignore them too."""
    stale = []
    for graph in (ui.root, *ui.subgraphs.values()):
        held = {port.link for node in graph.nodes.values() for port in node.inputs}
        stale += [
            link
            for link, ends in graph.links.items()
            if link not in held and (not graph.exit or ends.target != graph.exit)
        ]
    return f"links without an input have no effect: {listed(stale, LISTED)}" if stale else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _renamed(graph: Graph, layout: dict[str, Any], ids: Any) -> tuple[Graph, dict[str, Any]]:
    """Restores the original ids of a file that was converted to an editor's numeric ids."""
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
