"""Parses the editor's format (v0.4 and v1.0) to nodes, links and subgraphs, and checks their
structure.

Must not know node types. Does not follow links; `ui_flatten` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.messages import node_name, one_line, shorten, show
from katz_graph.formats.api import holds_infinite
from katz_graph.formats.strict_json import parse_json

NEWEST = 1.0
LINK_KEYS = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
SHOWN = 20  # problems listed in one message
MAX_SLOTS = 1000  # inputs, or outputs, of a node
MAX_ABSOLUTE_NUMBER = 10**100  # upper bound of node and link numbers
INTERNAL = "$$"  # name prefix of display elements that are not widgets, such as a preview
ID_LENGTH = 200  # characters; ids inside subgraphs are concatenated from several


@dataclass(frozen=True, slots=True)
class UiInput:
    """An input. `link`: the id of the incoming link; `widget`: whether the input belongs to a
    widget.
    """

    name: str
    socket: str
    link: str | None = None
    widget: bool = False


@dataclass(frozen=True, slots=True)
class UiOutput:
    name: str
    socket: str


@dataclass(frozen=True, slots=True)
class UiLink:
    origin: str
    origin_slot: int
    target: str
    target_slot: int


@dataclass(frozen=True, slots=True)
class Proxy:
    """An entry of `properties.proxyWidgets`: a subgraph node shows the widget `name` of the inner
    node `node`. `owner`: the node further inside that has this widget, if several widgets have its
    name.
    """

    node: str
    name: str
    owner: str = ""


@dataclass(frozen=True, slots=True)
class UiNode:
    id: str
    type: str
    mode: int
    title: str
    inputs: tuple[UiInput, ...]
    outputs: tuple[UiOutput, ...]
    values: Sequence[Any] | Mapping[str, Any]
    """`widgets_values`, unchanged."""
    named: Mapping[str, Any] | None
    """The values by widget name; None if the file has no names."""
    proxies: tuple[Proxy | None, ...]
    """None for an entry that shows no widget."""
    raw: Mapping[str, Any]
    """The whole object."""


@dataclass(frozen=True, slots=True)
class UiGraph:
    """The root graph or a subgraph. Only a subgraph has `inputs` and `outputs`: links from the node
    `entry` and to the node `exit`.
    """

    nodes: Mapping[str, UiNode]
    links: Mapping[str, UiLink]
    name: str = ""
    inputs: tuple[UiInput, ...] = ()
    outputs: tuple[UiOutput, ...] = ()
    entry: str = ""
    exit: str = ""
    results: Mapping[int, str] = field(default_factory=dict)  # output -> the link into it
    widgets: tuple[str, ...] = ()  # inputs that lead to a widget inside


@dataclass(frozen=True, slots=True)
class UiDocument:
    """A parsed UI file. `last_node`: the largest node number used so far, according to the file."""

    root: UiGraph
    subgraphs: Mapping[str, UiGraph]
    groups: Sequence[Mapping[str, Any]]
    extra: Mapping[str, Any]
    last_node: int = 0


def is_ui(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("nodes"), list)


def parse_ui(document: Mapping[str, Any]) -> UiDocument:
    """Parses a UI file. InputError with a line per malformed node and link."""
    version = document.get("version")
    if isinstance(version, (int, float)) and version > NEWEST:
        raise InputError(
            f"is a UI workflow of version {show(version)}, newer than this one reads (0.4 and 1.0)"
        )
    problems: list[str] = []
    subgraphs: dict[str, UiGraph] = {}
    for number, definition in enumerate(_definitions(document, problems)):
        identifier = definition.get("id") if isinstance(definition, Mapping) else None
        if not isinstance(definition, Mapping) or not isinstance(identifier, str):
            problems.append(
                f"subgraph {number} is {show(definition)}, expected an object with an id"
            )
        elif identifier in subgraphs:
            problems.append(f"subgraph {one_line(shorten(identifier))}: this id occurs twice")
        else:
            name = definition.get("name")
            called = name if isinstance(name, str) and name else identifier
            subgraphs[identifier] = _Reader(
                f'subgraph "{one_line(shorten(called))}": ', problems
            ).graph(definition, called)
    reader = _Reader("", problems)
    root = reader.graph(document, "")
    groups = [
        group
        for group in reader.list(document.get("groups"), "groups")
        if isinstance(group, Mapping)
    ]
    extra = document.get("extra")
    if holds_infinite(
        [value for key, value in document.items() if key not in ("nodes", "definitions")]
    ):
        problems.append("contains NaN or infinity outside of the nodes")
    if problems:
        more = [f"and {len(problems) - SHOWN:,} more problems"] if len(problems) > SHOWN else []
        raise InputError("\n".join(problems[:SHOWN] + more))
    return UiDocument(
        root,
        subgraphs,
        groups,
        extra if isinstance(extra, Mapping) else {},
        _last_node(document),
    )


def _definitions(document: Mapping[str, Any], problems: list[str]) -> list[Any]:
    """Lists the subgraph definitions, each before those nested in it."""
    found: list[Any] = []
    pending: list[Any] = [document]
    while pending:
        owner = pending.pop()
        if owner is not document:
            found.append(owner)
        definitions = owner.get("definitions") if isinstance(owner, Mapping) else None
        if not definitions:
            continue
        listed = (
            definitions.get("subgraphs") or [] if isinstance(definitions, Mapping) else definitions
        )
        if isinstance(listed, list):
            pending += reversed(listed)
        else:
            problems.append(
                f"definitions is {show(listed)}, expected an object with a list of subgraphs"
            )
    return found


def _last_node(document: Mapping[str, Any]) -> int:
    state = document.get("state")
    last = document.get(
        "last_node_id", state.get("lastNodeId") if isinstance(state, Mapping) else 0
    )
    return last if isinstance(last, int) and 0 < last < MAX_ABSOLUTE_NUMBER else 0


class _Reader:
    """Reads one graph; `where` is the prefix of every problem."""

    def __init__(self, where: str, problems: list[str]) -> None:
        self.where, self.problems = where, problems

    def report(self, problem: str) -> None:
        self.problems.append(f"{self.where}{problem}")

    def graph(self, raw: Mapping[str, Any], name: str) -> UiGraph:
        nodes: dict[str, UiNode] = {}
        for number, described in enumerate(self.list(raw.get("nodes"), "nodes")):
            node = self.node(number, described)
            if node and node.id in nodes:
                self.report(f"node {one_line(shorten(node.id))}: this id occurs twice")
            elif node:
                nodes[node.id] = node
        inner = raw if name else {}
        inputs = tuple(
            self.input(port, f"input {n}")
            for n, port in enumerate(self.slots(inner.get("inputs"), "inputs"))
        )
        outputs = tuple(
            self.output(port, f"output {n}")
            for n, port in enumerate(self.slots(inner.get("outputs"), "outputs"))
        )
        entry = self.boundary(raw, "inputNode", "-10") if name else ""
        exit = self.boundary(raw, "outputNode", "-20") if name else ""
        links = self.links(raw.get("links"))
        results = {
            link.target_slot: identifier
            for identifier, link in reversed(links.items())
            if name and link.target == exit
        }
        graph = UiGraph(
            nodes,
            links,
            name,
            inputs,
            outputs,
            entry,
            exit,
            results,
            _widgets(nodes, links, inputs, entry),
        )
        self.check_links(graph)
        return graph

    def node(self, number: int, raw: Any) -> UiNode | None:
        identifier = _id(raw.get("id")) if isinstance(raw, Mapping) else None
        if not isinstance(raw, Mapping) or identifier is None:
            self.report(
                f"node number {number} is {show(raw)}, expected an object with an id (a number or "
                "a short text)"
            )
            return None
        where = f"node {one_line(shorten(identifier))}"
        kind = raw.get("type")
        mode = raw.get("mode", 0)
        values = raw.get("widgets_values")
        named = raw.get("widgets_values_named")
        if not isinstance(kind, str) or not kind:
            self.report(f"{where}: type is {show(kind)}, expected a name")
            return None
        if not isinstance(mode, int):
            self.report(f"{where}: mode is {show(mode)}, expected a number")
            mode = 0
        if values is not None and not isinstance(values, (list, Mapping)):
            self.report(f"{where}: widgets_values is {show(values)}, expected a list or an object")
            values = None
        if named is not None and not isinstance(named, Mapping):
            self.report(f"{where}: widgets_values_named is {show(named)}, expected an object")
            named = None
        if holds_infinite(raw):
            self.report(f"{where} contains NaN or infinity")
        title = raw.get("title")
        return UiNode(
            identifier,
            kind,
            mode,
            title if isinstance(title, str) else "",
            tuple(
                self.input(port, f"{where}, input {n}")
                for n, port in enumerate(self.slots(raw.get("inputs"), f"{where}: inputs"))
            ),
            tuple(
                self.output(port, f"{where}, output {n}")
                for n, port in enumerate(self.slots(raw.get("outputs"), f"{where}: outputs"))
            ),
            values or (),
            named,
            _proxies(raw),
            raw,
        )

    def input(self, raw: Any, where: str) -> UiInput:
        name = raw.get("name") if isinstance(raw, Mapping) else None
        if not isinstance(name, str):
            self.report(f"{where} is {show(raw)}, expected an object with a name")
            return UiInput("", "*")
        link = raw.get("link")
        if link is not None and _id(link) is None:
            self.report(
                f"{where} ({one_line(shorten(name))}): link is {show(link)}, expected the "
                "id of a link"
            )
        return UiInput(
            name,
            _socket(raw.get("type")),
            None if link is None else _id(link),
            isinstance(raw.get("widget"), Mapping),
        )

    def output(self, raw: Any, where: str) -> UiOutput:
        name = raw.get("name") if isinstance(raw, Mapping) else None
        if not isinstance(raw, Mapping) or not isinstance(name, (str, type(None))):
            self.report(f"{where} is {show(raw)}, expected an object with a name")
            return UiOutput("", "*")
        return UiOutput(name or "", _socket(raw.get("type")))

    def links(self, raw: Any) -> dict[str, UiLink]:
        links: dict[str, UiLink] = {}
        for number, described in enumerate(self.list(raw, "links")):
            if described is None:
                continue
            parts = (
                [described.get(key) for key in LINK_KEYS]
                if isinstance(described, Mapping)
                else described
            )
            if not isinstance(parts, list) or len(parts) < len(LINK_KEYS):
                self.report(
                    f"link number {number} is {show(described)}, expected [id, node, output, node, "
                    "input, type] or an object of these"
                )
                continue
            identifier, origin, target = _id(parts[0]), _id(parts[1]), _id(parts[3])
            origin_slot, target_slot = _slot(parts[2]), _slot(parts[4])
            if (
                identifier is None
                or origin is None
                or target is None
                or origin_slot is None
                or target_slot is None
            ):
                ends = (
                    f"from {show(parts[1])}, {show(parts[2])} to {show(parts[3])}, {show(parts[4])}"
                )
                self.report(
                    f"link {show(parts[0])} goes {ends}; expected ids of nodes and numbers of slots"
                )
                continue
            link = UiLink(origin, origin_slot, target, target_slot)
            if links.setdefault(identifier, link) != link:
                self.report(f"link {one_line(shorten(identifier))}: this id occurs twice")
        return links

    def check_links(self, graph: UiGraph) -> None:
        """Checks that the link of every input leads to an existing node."""
        for node in graph.nodes.values():
            for port in node.inputs:
                if port.link is not None:
                    self.check_link(
                        graph,
                        port.link,
                        f"{node_name(node.id, node.type)}, input {show(port.name)}",
                    )
        for slot, identifier in graph.results.items():
            self.check_link(graph, identifier, f"output {slot}")

    def check_link(self, graph: UiGraph, identifier: str, reader: str) -> None:
        link = graph.links.get(identifier)
        name = one_line(shorten(identifier))
        if link is None:
            self.report(f"{reader}: link {name} does not exist")
        elif graph.name and link.origin == graph.entry:
            if link.origin_slot >= len(graph.inputs):
                self.report(
                    f"{reader}: link {name} comes from input {link.origin_slot} of the subgraph, "
                    f"which has {len(graph.inputs)}"
                )
        elif link.origin not in graph.nodes:
            self.report(
                f"{reader}: link {name} comes from node {one_line(shorten(link.origin))}, which is "
                "not in the workflow"
            )

    def boundary(self, raw: Mapping[str, Any], key: str, usual: str) -> str:
        described = raw.get(key)
        return (_id(described.get("id")) if isinstance(described, Mapping) else None) or usual

    def slots(self, raw: Any, where: str) -> list[Any]:
        slots = self.list(raw, where)
        if len(slots) > MAX_SLOTS:
            self.report(f"{where} are {len(slots):,}, expected at most {MAX_SLOTS:,}")
        return slots[:MAX_SLOTS]

    def list(self, raw: Any, where: str) -> list[Any]:
        if raw is None:
            return []
        if not isinstance(raw, list):
            self.report(f"{where} is {show(raw)}, expected a list")
            return []
        return raw


def _widgets(
    nodes: Mapping[str, UiNode], links: Mapping[str, UiLink], inputs: Sequence[UiInput], entry: str
) -> tuple[str, ...]:
    entering = (link for link in links.values() if link.origin == entry and link.target in nodes)
    held = (
        (link.origin_slot, nodes[link.target].inputs[link.target_slot : link.target_slot + 1])
        for link in entering
    )
    leading = {slot for slot, ports in held if any(port.widget for port in ports)}
    return tuple(port.name for slot, port in enumerate(inputs) if slot in leading)


def _proxies(raw: Mapping[str, Any]) -> tuple[Proxy | None, ...]:
    properties = raw.get("properties")
    entries = properties.get("proxyWidgets") if isinstance(properties, Mapping) else None
    if isinstance(entries, str):
        with suppress(InputError):
            entries = parse_json(entries)
    return tuple(map(_proxy, entries)) if isinstance(entries, list) else ()


def _proxy(entry: Any) -> Proxy | None:
    if not isinstance(entry, list) or len(entry) < 2:
        return None
    node, name = _id(entry[0]), entry[1]
    if node is None or not isinstance(name, str) or name.startswith(INTERNAL):
        return None
    return Proxy(node, name, (_id(entry[2]) or "") if len(entry) > 2 else "")


def _id(value: Any) -> str | None:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        return value if 0 < len(value) <= ID_LENGTH else None
    return (
        str(value)
        if isinstance(value, int)
        and not isinstance(value, bool)
        and abs(value) < MAX_ABSOLUTE_NUMBER
        else None
    )


def _slot(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _socket(value: Any) -> str:
    """Returns a slot's type. Old files use a list of choices for COMBO, -1 or 0 for any type."""
    return (
        value if isinstance(value, str) and value else "COMBO" if isinstance(value, list) else "*"
    )
