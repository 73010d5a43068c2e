"""Converts group nodes, defined in `extra.groupNodes`, to subgraph nodes, as front ends do when
they load a document.

A group node has the type `workflow>NAME` (formerly `workflow/NAME`). It shows the widgets of all
nodes in the group in sequence, then the inputs and outputs that no link inside the group uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.messages import one_line, shorten
from katz_graph.formats.front_end.browser_nodes import kind_of
from katz_graph.formats.signature import Signatures
from katz_graph.formats.ui_widgets import positions

PREFIXES = ("workflow>", "workflow/")
MAX_NODES = 10_000  # in all expanded group nodes together
ENTRY, EXIT = -10, -20


def with_subgraphs(
    document: Mapping[str, Any], known: Signatures, ids_stay: bool = False
) -> Mapping[str, Any]:
    """Replaces the group nodes of a document by subgraphs; returns a document without group nodes
    unchanged. Subgraph nodes get new ids, as in front ends, unless `ids_stay`. InputError for a
    malformed group, or one that contains itself.
    """
    extra = document.get("extra")
    groups = extra.get("groupNodes") if isinstance(extra, Mapping) else None
    nodes = document.get("nodes")
    if not isinstance(groups, Mapping) or not isinstance(nodes, list):
        return document
    if not any(_group_of(node, groups) for node in nodes):
        return document
    made = _Replacing(document, groups, known)
    replaced = [made.replaced(node, ids_stay) for node in nodes]
    links = document.get("links")
    return {
        **document,
        "nodes": replaced,
        "links": [_followed(link, made.ids) for link in links]
        if isinstance(links, list)
        else links,
        "last_node_id": made.last,
        "definitions": {"subgraphs": [*made.definitions, *made.present]},
    }


def _group_of(node: Any, groups: Mapping[str, Any]) -> str | None:
    """Returns the name of a group node's group; None for other nodes."""
    kind = node.get("type") if isinstance(node, Mapping) else None
    if not isinstance(kind, str):
        return None
    names = (kind[len(prefix) :] for prefix in PREFIXES if kind.startswith(prefix))
    return next((name for name in names if name in groups), None)


@dataclass(slots=True)
class _Interface:
    """The inputs and outputs of a group node, mapped to (member number, name or slot)."""

    inputs: dict[str, tuple[int, str]] = field(default_factory=dict)
    outputs: list[tuple[int, int]] = field(default_factory=list)


class _Replacing:
    """Replaces the group nodes of one document, and numbers the new nodes."""

    def __init__(
        self, document: Mapping[str, Any], groups: Mapping[str, Any], known: Signatures
    ) -> None:
        self.groups, self.known = groups, known
        definitions = document.get("definitions")
        present = definitions.get("subgraphs") if isinstance(definitions, Mapping) else None
        self.present: list[Any] = present if isinstance(present, list) else []
        self.definitions: list[dict[str, Any]] = []
        graphs = [document, *filter(lambda graph: isinstance(graph, Mapping), self.present)]
        numbers = [node.get("id") for graph in graphs for node in _objects(graph.get("nodes"))]
        last = document.get("last_node_id")
        self.last = max((n for n in (last, *numbers) if isinstance(n, int)), default=0)
        self.count = 0
        self.ids: dict[Any, int] = {}  # group node -> its replacement

    def replaced(self, node: Any, id_stays: bool, around: tuple[str, ...] = ()) -> Any:
        """Returns the subgraph node for a group node; other nodes unchanged."""
        name = _group_of(node, self.groups)
        if name is None:
            return node
        group = self.groups[name]
        where = f"group node {one_line(shorten(name))}"
        if name in around:
            raise InputError(f"{where} contains itself")
        members = _objects(group.get("nodes")) if isinstance(group, Mapping) else []
        if not members:
            raise InputError(f"{where}: extra.groupNodes does not list its nodes")
        self.count += len(members)
        if self.count > MAX_NODES:
            raise InputError(f"has group nodes of more than {MAX_NODES:,} nodes")
        links = [link for link in _lists(group.get("links")) if _is_link(link, len(members))]
        shown = _interface(group, members, links, self.known)
        inner = self._members(node, members, shown)
        # numbers the members, then their own members, and the group node last
        numbers = [self._next() for _ in inner]
        identifier = f"group node {node.get('id')} {len(self.definitions)}"
        definition: dict[str, Any] = {"id": identifier, "name": node.get("title") or name}
        self.definitions.append(definition)
        number = node.get("id") if id_stays else self._next()
        if not id_stays and isinstance(node.get("id"), (int, str)):
            self.ids[node["id"]] = number
        definition |= _definition(inner, numbers, links, shown)
        definition["nodes"] = [
            self.replaced(one, True, (*around, name)) for one in definition["nodes"]
        ]
        return {
            **node,
            "id": number,
            "type": identifier,
            "widgets_values": [],
            "inputs": _ports(node.get("inputs"), shown),
        }

    def _next(self) -> int:
        self.last += 1
        return self.last

    def _members(
        self, node: Mapping[str, Any], members: Sequence[Mapping[str, Any]], shown: _Interface
    ) -> list[dict[str, Any]]:
        """Returns the members with the values of the group node's widgets. Values of widgets
        converted to inputs come after all others.
        """
        values = node.get("widgets_values")
        given = iter(values if isinstance(values, list) else ())
        placed = [_own_values(member) for member in members]
        made = [_made_of_widgets(member, self.known) for member in members]
        for last in (False, True):
            for own, is_made in zip(placed, made, strict=True):
                own[:] = [
                    next(given, value) if is_last is last else value
                    for value, is_last in zip(own, is_made, strict=True)
                ]
        return [
            {**member, "widgets_values": own} if own else {**member}
            for member, own in zip(members, placed, strict=True)
        ]


def _own_values(member: Mapping[str, Any]) -> list[Any]:
    values = member.get("widgets_values")
    return list(values) if isinstance(values, list) else []


def _made_of_widgets(member: Mapping[str, Any], known: Signatures) -> list[bool]:
    """Returns for each value of a member whether its widget was converted to an input."""
    values = _own_values(member)
    signature = known(str(member.get("type")))
    owners = positions(signature.widgets, values) if signature else [None] * len(values)
    made = {
        port.get("name")
        for port in _objects(member.get("inputs"))
        if isinstance(port.get("widget"), Mapping)
    }
    return [owner is not None and owner.name in made for owner in owners]


def _interface(
    group: Mapping[str, Any],
    members: Sequence[Mapping[str, Any]],
    links: Sequence[Sequence[Any]],
    known: Signatures,
) -> _Interface:
    shown = _Interface()
    names: dict[str, int] = {}
    taken = {(link[2], link[3]) for link in links}
    given = {(link[0], link[1]) for link in links}
    outside = {(entry[0], entry[1]) for entry in _lists(group.get("external")) if len(entry) > 1}
    made: list[tuple[int, str]] = []

    def name_for(number: int, name: str) -> str:
        """Names an input as front ends do: prefixes duplicates with the node's title or type."""
        member = members[number]
        written = _configured(group, number, "input", name).get("name")
        ports = [port for port in _objects(member.get("inputs")) if port.get("name") == name]
        shorter = written or next((port.get("label") for port in ports if port.get("label")), name)
        titled = member.get("type") == "PrimitiveNode" and member.get("title")
        base = full = str(shorter)
        if titled or full in names:
            before = f"{member.get('title') or member.get('type')} "
            base = full = f"{before}{name}"
            if full in names:
                full = f"{before}{names[full]} {name}"
        names[base] = names.get(base, 1) + 1
        return full

    for number, member in enumerate(members):
        if kind_of(str(member.get("type"))) == "note":
            continue
        ports = list(enumerate(_objects(member.get("inputs"))))
        widgets = {port.get("name") for _, port in ports if isinstance(port.get("widget"), Mapping)}
        signature = known(str(member.get("type")))
        for slot in signature.widgets if signature else ():
            if slot.name not in widgets:
                name_for(number, slot.name)
        for slot_number, port in ports:
            name = str(port.get("name"))
            if (number, slot_number) in taken:
                continue
            if name in widgets:
                made.append((number, name))
            elif _configured(group, number, "input", name).get("visible") is not False:
                shown.inputs[name_for(number, name)] = number, name
        for slot_number, _ in enumerate(_objects(member.get("outputs"))):
            end = number, slot_number
            visible = _configured(group, number, "output", str(slot_number)).get("visible")
            if visible if isinstance(visible, bool) else end not in given or end in outside:
                shown.outputs.append(end)
    for number, name in made:
        shown.inputs[name_for(number, name)] = number, name
    return shown


def _configured(group: Mapping[str, Any], number: int, side: str, key: str) -> Mapping[str, Any]:
    """Returns the user's settings for an input or output in the group dialog."""
    found: Any = group.get("config")
    for step in (str(number), side, key):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _definition(
    members: Sequence[Mapping[str, Any]],
    numbers: Sequence[int],
    links: Sequence[Sequence[Any]],
    shown: _Interface,
) -> dict[str, Any]:
    nodes = [
        {
            **member,
            "id": number,
            "inputs": [{**port, "link": None} for port in _objects(member.get("inputs"))],
        }
        for member, number in zip(members, numbers, strict=True)
    ]
    written: list[dict[str, Any]] = []

    def link(origin: Any, origin_slot: int, target: Any, target_slot: int) -> None:
        written.append(
            {
                "id": len(written) + 1,
                "origin_id": origin,
                "origin_slot": origin_slot,
                "target_id": target,
                "target_slot": target_slot,
            }
        )

    def into(number: int, slot: int, origin: int, origin_slot: int) -> None:
        ports = nodes[number]["inputs"]
        if slot < len(ports):
            link(origin, origin_slot, numbers[number], slot)
            ports[slot]["link"] = len(written)

    for origin, origin_slot, target, target_slot, *_ in links:
        into(target, target_slot, numbers[origin], origin_slot)
    for place, (number, name) in enumerate(shown.inputs.values()):
        names = [port.get("name") for port in nodes[number]["inputs"]]
        into(number, names.index(name), ENTRY, place)
    for place, (number, slot) in enumerate(shown.outputs):
        link(numbers[number], slot, EXIT, place)
    return {
        "inputNode": {"id": ENTRY},
        "outputNode": {"id": EXIT},
        "inputs": [{"name": name, "type": "*"} for name in shown.inputs],
        "outputs": [{"name": f"{place}", "type": "*"} for place, _ in enumerate(shown.outputs)],
        "nodes": nodes,
        "links": written,
    }


def _ports(ports: Any, shown: _Interface) -> list[Any]:
    """Gives the inputs of a group node the names of the subgraph's inputs. A linked input of
    another name gets the first name that no input has.
    """
    free = [
        name for name in shown.inputs if all(port.get("name") != name for port in _objects(ports))
    ]
    return [
        port
        if port.get("name") in shown.inputs or port.get("link") is None or not free
        else {**port, "name": free.pop(0)}
        for port in _objects(ports)
    ]


def _followed(link: Any, ids: Mapping[Any, int]) -> Any:
    """Returns a link with the new ids of its ends."""

    def moved(end: Any) -> Any:
        return ids.get(end, end) if isinstance(end, (int, str)) else end

    if isinstance(link, Mapping):
        ends = {key: moved(link[key]) for key in ("origin_id", "target_id") if key in link}
        return {**link, **ends}
    if isinstance(link, list):
        return [moved(part) if place in (1, 3) else part for place, part in enumerate(link)]
    return link


def _is_link(link: Sequence[Any], members: int) -> bool:
    ends = link[:4]
    return (
        len(ends) == 4
        and all(isinstance(end, int) and not isinstance(end, bool) and end >= 0 for end in ends)
        and ends[0] < members
        and ends[2] < members
    )


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _lists(value: Any) -> list[Sequence[Any]]:
    return [one for one in value if isinstance(one, list)] if isinstance(value, list) else []
