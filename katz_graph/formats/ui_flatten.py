"""Flattens a UI document. Subgraphs are replaced by their members, with the values that the
subgraph node passes inside. Reroutes and bypassed nodes are replaced by their sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from katz_graph.checks.cycles import find_cycles
from katz_graph.core.errors import InputError
from katz_graph.core.graph import Link
from katz_graph.core.messages import one_line, shorten, show
from katz_graph.formats.front_end.browser_nodes import kind_of
from katz_graph.formats.front_end.promoted import Deeper, Leaf, Own, Promotions, Values
from katz_graph.formats.signature import Signatures
from katz_graph.formats.ui_document import UiDocument, UiGraph, UiNode
from katz_graph.formats.ui_widgets import widget_values

NODES = 100_000  # in a workflow with expanded subgraphs
NESTED = 50  # levels of nested subgraphs
MUTED, BYPASSED = 2, 4  # modes of a node
PATTERNS = "Run widget replace on values"  # a property of primitives


@dataclass(frozen=True, slots=True)
class Literal:
    """A value at the end of a link, from a primitive or from a widget on a subgraph. A `promoted`
    value is sent unchanged. A primitive's value is converted like a value of the widget that reads
    it. `patterns`: expand file name patterns first.
    """

    value: Any
    promoted: bool = False
    patterns: bool = False


@dataclass(frozen=True, slots=True)
class Removed:
    """The source of a link is a node that is not sent."""

    why: str


Source = Link | Literal | Removed | None


@dataclass(slots=True)
class Scope:
    """One occurrence of a graph in the document: the root, or the inside of a subgraph node."""

    graph: UiGraph
    prefix: str = ""
    parent: Scope | None = None
    instance: UiNode | None = None
    values: Values = field(default_factory=dict)  # that the instance passes inside
    inside: dict[str, Scope] = field(default_factory=dict)  # instance -> its scope
    promoted: dict[str, Any] = field(init=False)  # input of the subgraph -> value
    overridden: dict[tuple[str, str], Any] = field(init=False)  # (member, widget) -> value
    set_nodes: dict[str, UiNode] = field(init=False)
    ports: dict[str, str | None] = field(init=False)  # the instance's inputs and their links

    def __post_init__(self) -> None:
        self.promoted = {to.name: value for to, value in self.values.items() if isinstance(to, Own)}
        self.overridden = {
            (to.node, to.name): value for to, value in self.values.items() if isinstance(to, Leaf)
        }
        self.set_nodes = {
            name: node
            for node in self.graph.nodes.values()
            if kind_of(node.type) == "set" and (name := _label(node))
        }
        self.ports = (
            {port.name: port.link for port in self.instance.inputs} if self.instance else {}
        )

    def given_to(self, instance: str) -> Values:
        """Returns the values that this scope's subgraph node passes to the inner `instance`."""
        return {
            to.target: value
            for to, value in self.values.items()
            if isinstance(to, Deeper) and to.node == instance
        }

    def where(self, node: UiNode) -> str:
        return one_line(f"node {shorten(self.prefix + node.id)} ({shorten(node.type)})")


@dataclass(frozen=True, slots=True)
class Member:
    """A node that is sent, and its scope."""

    id: str
    node: UiNode
    scope: Scope


def flatten(
    document: UiDocument, promotions: Promotions, notes: list[str]
) -> tuple[list[Scope], list[Member]]:
    """Returns all scopes, and the nodes to send in the order of the file. InputError if a subgraph
    contains itself, or for too many nodes or levels.

    Members of a muted or bypassed subgraph node that is inside a subgraph are sent, as in front
    ends.
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
        off = node.mode in (MUTED, BYPASSED)
        if inner is None and (off or kind_of(node.type)):
            continue
        if off and scope.parent is None:
            continue
        if inner is None:
            members.append(Member(scope.prefix + node.id, node, scope))
            continue
        if len(pending) > NESTED:
            raise InputError(
                f"{scope.where(node)}: subgraphs nested more than {NESTED} levels deep"
            )
        values = promotions.values(node, inner, notes, scope.where(node))
        child = Scope(
            inner, f"{scope.prefix}{node.id}:", scope, node, values | scope.given_to(node.id)
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
    """Follows the link of an input to its source. Each path is followed once."""

    def __init__(self, known: Signatures, promotions: Promotions) -> None:
        self.known, self.promotions = known, promotions
        self._found: dict[tuple[str, str], Source] = {}
        # (scope, bypassed node, type) -> link of the matching input
        self._fitting: dict[tuple[str, str, str], str | None] = {}

    def of(self, scope: Scope, link: str, reader: str) -> Source:
        """Returns the output or value at the source of a link; None if a subgraph's input or a
        reroute has no source. InputError for a cycle of links.
        """
        way: list[tuple[str, str]] = []
        visited: set[tuple[str, str]] = set()
        at: tuple[Scope, str] | Source = (scope, link)
        while isinstance(at, tuple):
            key = at[0].prefix, at[1]
            if key in self._found:
                at = self._found[key]
                break
            if key in visited:
                raise InputError(
                    f"{reader}: its link {one_line(shorten(link))} is part of a cycle of reroutes "
                    "or bypassed nodes"
                )
            visited.add(key)
            way.append(key)
            at = self._step(*at)
        self._found |= dict.fromkeys(way, at)
        return at

    def _step(self, scope: Scope, identifier: str) -> tuple[Scope, str] | Source:
        """Follows a link by one step towards its source. A value on a subgraph node applies only if
        its input has no link. A primitive's value applies in every mode.
        """
        link = scope.graph.links[identifier]
        if scope.parent is not None and link.origin == scope.graph.entry:
            port = scope.graph.inputs[link.origin_slot]
            outer = scope.ports.get(port.name)
            return self._shown(scope, port.name) if outer is None else (scope.parent, outer)
        node = scope.graph.nodes[link.origin]
        kind = kind_of(node.type)
        if kind == "primitive":
            return _value_of(scope, node)
        if node.mode == MUTED:
            return Removed(one_line(f"muted node {shorten(scope.prefix + node.id)}"))
        if node.mode == BYPASSED:
            return self._around(scope, node, link.origin_slot)
        if node.id in scope.inside:
            inside = scope.inside[node.id]
            self._check_output(scope, node, link.origin_slot, len(inside.graph.outputs))
            result = inside.graph.results.get(link.origin_slot)
            return (inside, result) if result is not None else None
        match kind:
            case "get":
                return _set_by(scope, node)
            case "reroute" | "set":
                return _first(scope, node)
            case "note" | "control":
                return Removed(
                    one_line(
                        f"{shorten(node.type)} {shorten(scope.prefix + node.id)}, which exists "
                        "only in the browser"
                    )
                )
        signature = self.known(node.type)
        self._check_output(
            scope, node, link.origin_slot, len(signature.outputs) if signature else 0
        )
        return Link(scope.prefix + node.id, link.origin_slot)

    def _shown(self, scope: Scope, name: str) -> Literal | None:
        """Returns the value of a subgraph node's input: its own, otherwise that of the first widget
        inside. All targets of the input get this value.
        """
        if name in scope.promoted:
            return Literal(scope.promoted[name], promoted=True)
        for target in self.promotions.leads_to(scope.graph, name):
            found = None
            if isinstance(target, Leaf):
                found = self._own_value(scope.graph.nodes[target.node], target.name)
            elif isinstance(target.target, Own) and target.node in scope.inside:
                found = self._shown(scope.inside[target.node], target.target.name)
            if found is not None:
                return found
        return None

    def _own_value(self, node: UiNode, name: str) -> Literal | None:
        if kind_of(node.type) == "primitive" or not any(
            port.name == name and port.widget for port in node.inputs
        ):
            return None
        value = widget_values(node, self.known(node.type)).get(name)
        return None if value is None else Literal(value, promoted=True)

    def _around(self, scope: Scope, node: UiNode, slot: int) -> tuple[Scope, str] | Source:
        """Returns the source of a bypassed node's output: the input in the same position if its
        type matches, otherwise the first input of the same type.
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
        """Raises InputError if an output does not exist. `outputs`: number of outputs of the known
        type; the file may declare more.
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


def _value_of(scope: Scope, primitive: UiNode) -> Literal | None:
    """Returns the value of a primitive: the promoted one, otherwise its own."""
    for (node, _), value in scope.overridden.items():
        if node == primitive.id:
            return Literal(value, promoted=True)
    values = primitive.values
    own = list(values.values() if isinstance(values, Mapping) else values)
    properties = primitive.raw.get("properties")
    patterns = isinstance(properties, Mapping) and bool(properties.get(PATTERNS))
    return Literal(own[0], patterns=patterns) if own else None


def _label(node: UiNode) -> str:
    values = list(node.values.values() if isinstance(node.values, Mapping) else node.values)
    return values[0] if values and isinstance(values[0], str) else ""


def _first(scope: Scope, node: UiNode) -> tuple[Scope, str] | None:
    """Returns the link of a node's first input."""
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
