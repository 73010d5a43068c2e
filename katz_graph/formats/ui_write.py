"""Writes a workflow in the editor's format (v0.4). Places nodes by the layout, and the others in
columns by the longest path from a source.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.messages import node_name, one_line, shorten, show
from katz_graph.formats.front_end.browser_nodes import NOTES
from katz_graph.formats.front_end.file_names import WIDGET
from katz_graph.formats.front_end.prompt_text import typed_text
from katz_graph.formats.signature import FILTER, Port, Signature, Signatures, chosen, is_seed
from katz_graph.formats.ui_layout import GAP, LAYOUT_KEYS, bounds, pair
from katz_graph.formats.ui_to_prompt import OWN, SENT, is_rewritten
from katz_graph.formats.workflow import Workflow

PARTS: Mapping[str, type] = {"nodes": Mapping, "notes": list, "groups": list, "view": Mapping}
ACROSS, DOWN = 90.0, 70.0  # pixels between columns and between rows; titles are above nodes
CONTROL, UPLOAD = "fixed", "image"  # values of the helper widgets: the seed stays fixed
ANY = Port("*", "*")
MAX_OUTPUTS = 1000  # of a node of unknown type
MAX_ID = 2**53  # limit of exact integers in JavaScript
WIDTH = 320.0  # pixels
# heights in pixels: frame, slot or widget, multiline widget, image picker
HEAD, ROW, TEXT, PICTURE = 40.0, 24.0, 130.0, 170.0


def to_ui(workflow: Workflow, known: Signatures) -> dict[str, Any]:
    """Converts a workflow to a UI document; reading the document restores the graph. InputError for
    dangling links or a malformed layout.
    """
    layout = _checked(workflow.layout)
    drawing = EditorDrawing(workflow.graph, known, workflow.typed)
    nodes = dict(zip(workflow.graph.nodes, drawing.nodes, strict=True))
    notes = _numbered(layout["notes"], drawing.ids.values())
    _place(workflow.graph, nodes, notes, layout["nodes"])
    renamed = {str(number): key for key, number in drawing.ids.items() if str(number) != key}
    own = {
        "ids": renamed,
        "run": dict(workflow.run),
        "extra": dict(workflow.extra),
        SENT: dict(drawing.sent),
    }
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


def _place(
    graph: Graph,
    nodes: Mapping[str, dict[str, Any]],
    notes: Iterable[Mapping[str, Any]],
    looks: Mapping[str, Any],
) -> None:
    """Sets the positions of nodes from the layout, and arranges the others in columns below."""
    column_of = columns(graph)
    loose: dict[str, tuple[float, float]] = {}
    for order, key in enumerate(sorted(nodes, key=column_of.__getitem__)):
        nodes[key]["order"] = order
    for key, node in nodes.items():
        look = looks.get(key, {})
        node |= {
            name: look[name]
            for name in LAYOUT_KEYS
            if isinstance(look.get(name), type(node.get(name, ""))) and name in look
        }
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
    """Gives each note an id that no node has."""
    used = set(taken)
    numbered = []
    for number, note in enumerate(notes):
        if not isinstance(note, Mapping) or note.get("type") not in NOTES:
            raise InputError(
                f"layout: note {number} is {show(note)}, expected an object with the type "
                f"{' or '.join(NOTES)}"
            )
        identifier = note.get("id")
        if (
            not isinstance(identifier, int)
            or isinstance(identifier, bool)
            or identifier in used
            or identifier < 0
        ):
            identifier = max(used) + 1
        used.add(identifier)
        numbered.append({**note, "id": identifier, "pos": list(pair(note.get("pos")) or (0, 0))})
    return numbered


def _checked(layout: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of a layout. InputError for a part of the wrong type, because users may
    edit layouts in files.
    """
    parts = {name: layout.get(name, kind() if kind is list else {}) for name, kind in PARTS.items()}
    for name, part in parts.items():
        if not isinstance(part, PARTS[name]):
            raise InputError(
                f"layout: {name} is {show(part)}, expected "
                f"{'a list' if PARTS[name] is list else 'an object'}"
            )
    for key, look in parts["nodes"].items():
        if not isinstance(look, Mapping):
            raise InputError(
                f"layout: node {show(key)} is {show(look)}, expected an object with pos and size"
            )
    return parts


def columns(graph: Graph) -> dict[str, int]:
    """Returns each node's column, counted from the left: to the right of all its sources. The nodes
    of a cycle share a column.
    """
    import networkx as nx  # slow to import

    links = nx.DiGraph()
    links.add_nodes_from(graph.nodes)
    links.add_edges_from(
        (link.node, identifier)
        for identifier, call in graph.nodes.items()
        for _, link in call.links()
    )
    knots = nx.condensation(links)
    return {
        identifier: column
        for column, generation in enumerate(nx.topological_generations(knots))
        for knot in generation
        for identifier in knots.nodes[knot]["members"]
    }


def arranged(
    column_of: Mapping[str, int], sizes: Mapping[str, tuple[float, float]], left: float, top: float
) -> dict[str, list[float]]:
    """Returns the upper left corners by node id. `sizes`, (width, height) in pixels, selects the
    nodes to place and their order.
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


class EditorDrawing:
    """Builds the `nodes` in the order of the graph, the table of `links`, and `ids`, which maps
    node ids to numbers. `sent` maps texts as typed to the texts to send. `typed`: see `Workflow`.
    """

    def __init__(
        self, graph: Graph, known: Signatures, typed: Mapping[str, str] | None = None
    ) -> None:
        self.graph, self.known = graph, known
        self.sent, self._is_typed = dict(typed or {}), typed is not None
        self.ids = _numbers(graph)
        self.links: list[list[Any]] = []
        # node -> output -> links
        self._leaving: dict[str, dict[int, list[int]]] = {key: {} for key in graph.nodes}
        # for outputs of unknown type: the sockets that their readers expect
        self._sockets: dict[tuple[str, int], str] = {}
        self.nodes = [self._node(key, call) for key, call in graph.nodes.items()]
        for (key, call), node in zip(graph.nodes.items(), self.nodes, strict=True):
            node["outputs"] = self._outputs(key, call)
            node["size"] = _size(node, known(call.type))

    def _node(self, key: str, call: NodeCall) -> dict[str, Any]:
        signature = self.known(call.type)
        values, named = _widgets(call if self._is_typed else self._as_typed(call), signature)
        node = {
            "id": self.ids[key],
            "type": call.type,
            "pos": [0, 0],
            "size": [WIDTH, HEAD],
            "flags": {},
            "order": 0,
            "mode": 0,
            "inputs": list(self._inputs(key, call, signature)),
            "outputs": [],
            "properties": {"Node name for S&R": call.type},
            "widgets_values": values,
        }
        return (
            node
            | ({"widgets_values_named": named} if values else {})
            | ({"title": call.title} if call.title else {})
        )

    def _as_typed(self, call: NodeCall) -> NodeCall:
        """Returns the call with each text escaped so that exactly this text is sent."""
        signature = self.known(call.type)
        inputs = dict(call.inputs)
        for name, value in call.inputs.items():
            if isinstance(value, str) and is_rewritten(call.type, name, value, signature):
                typed = typed_text(value) if signature and name != WIDGET else None
                inputs[name] = value if typed is None else typed
                if typed is None:
                    self.sent[value] = value
                else:
                    self.sent.setdefault(typed, value)
        return replace(call, inputs=inputs)

    def _inputs(
        self, key: str, call: NodeCall, signature: Signature | None
    ) -> Iterator[dict[str, Any]]:
        """Yields the inputs without widgets, a free input per growing group, and the linked
        widgets.
        """
        linked = dict(call.links())
        wires = _sockets(signature.wires, linked) if signature else {}
        widgets = (
            {slot.name: slot.socket for slot in chosen(signature.widgets, call.inputs)}
            if signature
            else {}
        )
        for slot, name in enumerate([*wires, *(name for name in linked if name not in wires)]):
            socket = wires.get(name) or widgets.get(name)
            link = (
                self._link(key, call, slot, name, linked[name], socket) if name in linked else None
            )
            drawn = {
                "name": name,
                "type": socket or (self.links[-1][5] if link else "*"),
                "link": link,
            }
            yield drawn | (
                {"widget": {"name": name}} if name in widgets and name not in wires else {}
            )

    def _link(
        self, key: str, call: NodeCall, slot: int, name: str, link: Link, expected: str | None
    ) -> int:
        where = f"{node_name(key, call.type, call.title)}, input {one_line(shorten(name))}"
        source = self.graph.nodes.get(link.node)
        if source is None:
            raise InputError(
                f"{where}: links to node {show(link.node)}, which is not in the workflow"
            )
        signature = self.known(source.type)
        most = len(signature.outputs) if signature else MAX_OUTPUTS
        if not 0 <= link.output < most:
            raise InputError(
                f"{where}: links to output {link.output} of {node_name(link.node, source.type)}, "
                f"which has at most {most}"
            )
        socket = signature.outputs[link.output].socket if signature else expected or "*"
        if expected and not signature:
            self._sockets.setdefault((link.node, link.output), expected)
        number = len(self.links) + 1
        self.links.append([number, self.ids[link.node], link.output, self.ids[key], slot, socket])
        self._leaving[link.node].setdefault(link.output, []).append(number)
        return number

    def _outputs(self, key: str, call: NodeCall) -> list[dict[str, Any]]:
        signature, leaving = self.known(call.type), self._leaving[key]
        if signature:
            ports = list(signature.outputs)
        else:
            sockets = [
                self._sockets.get((key, slot), "*") for slot in range(max(leaving, default=-1) + 1)
            ]
            ports = [Port(socket, socket) for socket in sockets]
        return [
            {
                "name": port.name,
                "type": port.socket,
                "links": leaving.get(slot, []),
                "slot_index": slot,
            }
            for slot, port in enumerate(ports)
        ]


def _numbers(graph: Graph) -> dict[str, int]:
    """Numbers the nodes. Numeric ids stay; the others get the next free numbers."""
    numeric = {
        key: int(key)
        for key in graph.nodes
        if key.isascii() and key.isdecimal() and str(int(key[:17])) == key and int(key) < MAX_ID
    }
    following = max(numeric.values(), default=0)
    ids: dict[str, int] = {}
    for key in graph.nodes:
        following += key not in numeric
        ids[key] = numeric.get(key, following)
    return ids


def _widgets(call: NodeCall, signature: Signature | None) -> tuple[list[Any], dict[str, Any]]:
    """Returns the values of all widgets in order, and the values stated in the graph by name."""
    literals = {name: value for name, value in call.inputs.items() if not isinstance(value, Link)}
    values: list[Any] = []
    named: dict[str, Any] = {}
    slots = list(chosen(signature.widgets, call.inputs)) if signature else []
    for slot in slots:
        if slot.name in literals:
            named[slot.name] = literals.pop(slot.name)
        values.append(named.get(slot.name, slot.default))
        values += [follower.default for follower in slot.followers]
        if slot.control:
            values += [CONTROL, FILTER.default] if slot.socket == "COMBO" else [CONTROL]
    values += [UPLOAD] if any(slot.upload for slot in slots) else []
    for name, value in literals.items():
        named[name] = value
        values.append(value)
        values += (
            [CONTROL]
            if signature is None and isinstance(value, int) and is_seed(name, "INT")
            else []
        )
    return values, named


def _size(node: Mapping[str, Any], signature: Signature | None) -> list[float]:
    widgets = signature.widgets if signature else ()
    texts, pictures = (
        sum(getattr(one, kind) for one in widgets) for kind in ("multiline", "upload")
    )
    slots = max(len(node["inputs"]), len(node["outputs"])) + len(node["widgets_values"]) - texts
    return [WIDTH, HEAD + ROW * slots + TEXT * texts + PICTURE * pictures]


def _sockets(wires: Sequence[Port], linked: Container[str]) -> dict[str, str]:
    """Returns the sockets of the drawn inputs by name."""
    free: set[str] = set()
    drawn = {}
    for wire in wires:
        if wire.name in linked or wire.group not in free:
            drawn[wire.name] = wire.socket
        if wire.group and wire.name not in linked:
            free.add(wire.group)
    return drawn
