"""Flattens a UI document: subgraphs become their members, with the values that widgets of an
instance give those inside; reroutes and bypassed nodes the nodes that feed them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from katz_graph.checks.cycles import find_cycles
from katz_graph.errors import InputError
from katz_graph.formats.signature import Signatures
from katz_graph.formats.ui_document import UiDocument, UiGraph, UiNode
from katz_graph.graph import Link
from katz_graph.messages import one_line, shorten, show

NODES = 100_000  # of a workflow with its subgraphs written out
NESTED = 50  # subgraphs inside each other
MUTED, BYPASSED = 2, 4  # modes of a node
NOTES = ("Note", "MarkdownNote")
PRIMITIVE = "PrimitiveNode"
SET, GET = "SetNode", "GetNode"  # a GetNode gives what the SetNode of the same name gets
REROUTES = ("Reroute", "Reroute (rgthree)", SET)  # give what comes in
VIRTUAL = (*NOTES, *REROUTES, PRIMITIVE, GET)
OWN = "-1"  # in a list of proxies: a widget of the instance itself


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that a link delivers: of a primitive, or of a widget on a subgraph."""

    value: Any


@dataclass(frozen=True, slots=True)
class Removed:
    """A link ends at a node that takes no part."""

    why: str


Source = Link | Literal | Removed | None


@dataclass(slots=True)
class Scope:
    """One graph of the document as it stands in one place: the root, or the inside of one instance
    of a subgraph.
    """

    graph: UiGraph
    prefix: str = ""
    parent: Scope | None = None
    instance: UiNode | None = None
    # values that the instance's widgets give its inputs
    promoted: Mapping[str, Any] = field(default_factory=dict)
    # (member, widget) -> value that a widget outside shows
    overridden: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    inside: dict[str, Scope] = field(default_factory=dict)  # instance -> its scope
    set_nodes: dict[str, UiNode] = field(init=False)
    deeper: dict[str, dict[tuple[str, str], Any]] = field(init=False)
    ports: dict[str, str | None] = field(init=False)  # the instance's inputs and their links

    def __post_init__(self) -> None:
        self.set_nodes = {
            name: node
            for node in self.graph.nodes.values()
            if node.type == SET and (name := _label(node))
        }
        self.deeper = by_instance(self.overridden)
        self.ports = (
            {port.name: port.link for port in self.instance.inputs} if self.instance else {}
        )

    def where(self, node: UiNode) -> str:
        return one_line(f"node {shorten(self.prefix + node.id)} ({shorten(node.type)})")


@dataclass(frozen=True, slots=True)
class Member:
    """A node that takes part, and the scope that it stands in."""

    id: str
    node: UiNode
    scope: Scope


def flatten(document: UiDocument, notes: list[str]) -> tuple[list[Scope], list[Member]]:
    """Returns all scopes, and the nodes that take part in the order of the file. InputError when
    subgraphs contain themselves, or for too many.
    """
    _check_nesting(document)
    root = Scope(document.root)
    scopes, members = [root], []
    seen = 0
    pending: list[tuple[Scope, Iterator[UiNode]]] = [(root, iter(root.graph.nodes.values()))]
    while pending:
        scope, rest = pending[-1]
        node = next(rest, None)
        if node is None:
            pending.pop()
            continue
        seen += 1
        if seen > NODES:
            raise InputError(
                f"is a UI workflow of more than {NODES:,} nodes with its subgraphs written out"
            )
        inner = document.subgraphs.get(node.type)
        if node.mode in (MUTED, BYPASSED) or (inner is None and node.type in VIRTUAL):
            continue
        if inner is None:
            members.append(Member(scope.prefix + node.id, node, scope))
            continue
        if len(pending) > NESTED:
            raise InputError(
                f"{scope.where(node)}: subgraphs nested more than {NESTED} levels deep"
            )
        promoted = promoted_values(node, inner, notes, scope.where(node))
        child = Scope(
            inner,
            f"{scope.prefix}{node.id}:",
            scope,
            node,
            promoted,
            overrides(node, inner, scope.deeper.get(node.id, {})),
        )
        scope.inside[node.id] = child
        scopes.append(child)
        pending.append((child, iter(inner.nodes.values())))
    return scopes, members


def _check_nesting(document: UiDocument) -> None:
    contains = {
        identifier: [node.type for node in graph.nodes.values() if node.type in document.subgraphs]
        for identifier, graph in document.subgraphs.items()
    }
    cycle = next(find_cycles(contains), None)
    if cycle:
        names = [document.subgraphs[identifier].name for identifier in (*cycle, cycle[0])]
        raise InputError(
            f"subgraph {show(names[0])} contains itself: "
            f"{' -> '.join(one_line(shorten(name, 40)) for name in names[:10])}"
        )


class Sources:
    """Follows the link of an input to its real source. Each way is walked once."""

    def __init__(self, known: Signatures) -> None:
        self.known = known
        self._found: dict[tuple[str, str], Source] = {}
        # (scope, bypassed node, type) -> link of the input that fits
        self._fitting: dict[tuple[str, str, str], str | None] = {}

    def of(self, scope: Scope, link: str, reader: str) -> Source:
        """Returns the output, or the value, behind a link of a graph; None where a subgraph's input
        or a reroute has nothing behind it.
        """
        way: list[tuple[tuple[str, str], Literal | None]] = []
        visited: set[tuple[str, str]] = set()
        at: tuple[Scope, str] | Source = (scope, link)
        while isinstance(at, tuple):
            key = at[0].prefix, at[1]
            if key in self._found:
                at = self._found[key]
                break
            if key in visited:
                raise InputError(
                    f"{reader}: its link {one_line(shorten(link))} goes around in a circle of "
                    "reroutes or bypassed nodes"
                )
            visited.add(key)
            at, otherwise = self._step(*at)
            way.append((key, otherwise))
        for key, otherwise in reversed(way):
            at = otherwise if otherwise and not isinstance(at, (Link, Literal)) else at
            self._found[key] = at
        return at

    def _step(
        self, scope: Scope, identifier: str
    ) -> tuple[tuple[Scope, str] | Source, Literal | None]:
        """Takes one step against the direction of the data. Also returns the value that holds if
        the rest of the way leads nowhere.
        """
        link = scope.graph.links[identifier]
        if scope.parent is not None and link.origin == scope.graph.entry:
            port = scope.graph.inputs[link.origin_slot]
            shown = Literal(scope.promoted[port.name]) if port.name in scope.promoted else None
            outer = scope.ports.get(port.name)
            return ((scope.parent, outer) if outer is not None else None), shown
        node = scope.graph.nodes[link.origin]
        if node.mode == MUTED:
            return Removed(one_line(f"muted node {shorten(scope.prefix + node.id)}")), None
        if node.mode == BYPASSED:
            return self._around(scope, node, link.origin_slot), None
        if node.id in scope.inside:
            inside = scope.inside[node.id]
            self._check_output(scope, node, link.origin_slot, len(inside.graph.outputs))
            result = inside.graph.results.get(link.origin_slot)
            return ((inside, result) if result is not None else None), None
        if node.type == PRIMITIVE:
            values = list(node.values.values() if isinstance(node.values, Mapping) else node.values)
            return (Literal(values[0]) if values else None), None
        if node.type == GET:
            return _set_by(scope, node), None
        if node.type in REROUTES:
            return _first(scope, node), None
        if node.type in NOTES:
            return Removed(one_line(f"note {shorten(scope.prefix + node.id)}")), None
        signature = self.known(node.type)
        self._check_output(
            scope, node, link.origin_slot, len(signature.outputs) if signature else 0
        )
        return Link(scope.prefix + node.id, link.origin_slot), None

    def _around(self, scope: Scope, node: UiNode, slot: int) -> tuple[Scope, str] | Source:
        """Finds the source of a bypassed node's output: its input of the same place if the types
        fit, else the first of the same type.
        """
        socket = node.outputs[slot].socket if slot < len(node.outputs) else "*"
        if slot < len(node.inputs) and _fits(node.inputs[slot].socket, socket):
            link = node.inputs[slot].link
        else:
            key = scope.prefix, node.id, socket
            if key not in self._fitting:
                exact = (port for port in node.inputs if port.socket == socket)
                fitting = (port for port in node.inputs if _fits(port.socket, socket))
                chosen = next(chain(exact, fitting), None)
                self._fitting[key] = chosen.link if chosen else None
            link = self._fitting[key]
        if link is not None:
            return scope, link
        return Removed(one_line(f"bypassed node {shorten(scope.prefix + node.id)}"))

    def _check_output(self, scope: Scope, node: UiNode, slot: int, outputs: int) -> None:
        """Checks that an output exists. `outputs`: how many the known type has; the file may
        declare more.
        """
        declared = max(len(node.outputs), outputs)
        if slot >= declared:
            raise InputError(
                f"{scope.where(node)}: a link comes from output {slot}, but it has "
                f"{declared} outputs"
            )


def _fits(given: str, taken: str) -> bool:
    return (
        given == taken
        or "*" in (given, taken)
        or not set(given.split(",")).isdisjoint(taken.split(","))
    )


def _label(node: UiNode) -> str:
    values = list(node.values.values() if isinstance(node.values, Mapping) else node.values)
    return values[0] if values and isinstance(values[0], str) else ""


def _first(scope: Scope, node: UiNode) -> tuple[Scope, str] | None:
    """Follows the link into a node that has one input."""
    link = node.inputs[0].link if node.inputs else None
    return None if link is None else (scope, link)


def _set_by(scope: Scope, node: UiNode) -> tuple[Scope, str] | None:
    label = _label(node)
    here: Scope | None = scope
    while here is not None:
        setter = here.set_nodes.get(label)
        if setter is not None and setter.mode != MUTED:
            return _first(here, setter)
        here = here.parent
    return None


def promoted_values(
    instance: UiNode, inside: UiGraph, notes: list[str], where: str
) -> dict[str, Any]:
    """Returns the values that an instance's widgets give the subgraph's inputs, by name.

    Three generations of files: values in the order of the subgraph's inputs that lead to widgets
    (the first and the present one, which also names them), and a list of [inner node, widget] in
    `properties.proxyWidgets`.
    """
    values, named, proxies = instance.values, instance.named or {}, _proxies(instance)
    if isinstance(values, Mapping):
        return {port.name: values[port.name] for port in inside.inputs if port.name in values}
    if not values:
        return {port.name: named[port.name] for port in inside.inputs if port.name in named}
    if proxies:
        shown = dict(zip(proxies, values, strict=False)) if len(proxies) == len(values) else {}
        if not shown:
            notes.append(_unclear(where, len(values), len(proxies)))
        return {name: value for (node, name), value in shown.items() if node == OWN}
    names = tuple(named) if len(named) == len(values) else inside.widgets
    if len(names) != len(values):
        notes.append(_unclear(where, len(values), len(names)))
        return dict(named)
    return dict(zip(names, values, strict=True))


def overrides(
    instance: UiNode, inside: UiGraph, outer: Mapping[tuple[str, str], Any]
) -> dict[tuple[str, str], Any]:
    """Maps (member, widget) -> value by an instance's list of proxies; `outer` is what the ones
    around it show of its inside.
    """
    proxies = _proxies(instance)
    if not proxies or isinstance(instance.values, Mapping) or len(proxies) != len(instance.values):
        return dict(outer)
    return {
        proxy: value
        for proxy, value in zip(proxies, instance.values, strict=True)
        if proxy[0] != OWN
    } | dict(outer)


def by_instance(overridden: Mapping[tuple[str, str], Any]) -> dict[str, dict[tuple[str, str], Any]]:
    """Splits overrides by the instances inside: those of member `instance:member`."""
    deeper: dict[str, dict[tuple[str, str], Any]] = {}
    for (node, name), value in overridden.items():
        instance, inner, member = node.partition(":")
        if inner:
            deeper.setdefault(instance, {})[member, name] = value
    return deeper


def _proxies(instance: UiNode) -> list[tuple[str, str]]:
    properties = instance.raw.get("properties")
    entries = properties.get("proxyWidgets") if isinstance(properties, Mapping) else None
    if not isinstance(entries, list):
        return []
    pairs = [entry for entry in entries if isinstance(entry, list) and len(entry) >= 2]
    return [
        (str(node), name)
        for node, name, *_ in pairs
        if isinstance(name, str) and not name.startswith("$$")
    ]


def _unclear(where: str, values: int, widgets: int) -> str:
    return (
        f"{where}: {values} values for {widgets} widgets of the subgraph; those of the nodes "
        "inside were taken"
    )
