"""Resolves the promoted widgets of subgraph nodes, and their values.

A subgraph node shows the inputs of its subgraph that lead to a widget, and the entries of
`properties.proxyWidgets`. Values in `widgets_values` are assigned by position. A value on an outer
node overrides the values further inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katz_graph.core.messages import one_line, shorten, show
from katz_graph.formats.ui_document import Proxy, UiDocument, UiGraph, UiNode

OWN = "-1"  # as node id: an input of the subgraph itself
PREFIXED = re.compile(r"\s*(\d+)\s*:\s*(.+)", re.DOTALL)  # "5: steps": the widget `steps` of node 5


@dataclass(frozen=True, slots=True)
class Own:
    """An input of the subgraph."""

    name: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A widget of a node in the subgraph."""

    node: str
    name: str


@dataclass(frozen=True, slots=True)
class Deeper:
    """A widget that a nested subgraph node shows."""

    node: str
    target: Target


Target = Own | Leaf | Deeper
Values = dict[Target, Any]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A widget on a subgraph node: its name on the node, the (node, widget) pairs on its path, and
    its target.
    """

    name: str
    ends: frozenset[tuple[str, str]]
    target: Target


class Promotions:
    """Resolves promoted widgets of one document. Its subgraphs must not contain themselves."""

    def __init__(self, document: UiDocument) -> None:
        self.document = document
        # keyed by `id()` of graphs and nodes; the document holds references to them
        self._entering: dict[int, list[tuple[int, Leaf | Deeper]]] = {}
        self._inputs: dict[int, tuple[str, ...]] = {}
        self._shown: dict[int, list[_Shown]] = {}
        self._ends: dict[tuple[int, Target], frozenset[tuple[str, str]]] = {}

    def values(self, node: UiNode, inside: UiGraph, notes: list[str], where: str) -> Values:
        """Returns the values that a subgraph node passes inside. Adds a line to `notes` for each
        value without a widget.
        """
        if isinstance(node.values, Mapping):
            return _by_name(inside, node.values)
        if not node.proxies:
            return self._by_position(node, inside, notes, where)
        values: Values = {}
        for proxy, value in zip(node.proxies, node.values, strict=False):
            if proxy is None or value is None:
                continue
            target = self.target(inside, proxy)
            if target is None:
                notes.append(
                    f"{where}: its value {show(value)} was left out: the subgraph has no widget "
                    f"{show(proxy.name)} of node {one_line(shorten(proxy.node))}"
                )
            else:
                values[target] = value
        _note_beyond(node, len(node.proxies), notes, where)
        return values

    def _by_position(self, node: UiNode, inside: UiGraph, notes: list[str], where: str) -> Values:
        named = node.named or {}
        if not node.values or len(named) > len(node.values):
            return _by_name(inside, named)
        names = list(named) if len(named) == len(node.values) else self.shown_inputs(inside)
        _note_beyond(node, len(names), notes, where)
        return {
            Own(name): value
            for name, value in zip(names, node.values, strict=False)
            if value is not None
        }

    def shown_inputs(self, graph: UiGraph) -> tuple[str, ...]:
        """Returns the inputs of a subgraph that lead to a widget inside, at any depth."""
        if id(graph) not in self._inputs:
            entering = self._entered(graph)
            leading = {slot for slot, target in entering if self._is_widget(graph, target)}
            self._inputs[id(graph)] = tuple(
                port.name for slot, port in enumerate(graph.inputs) if slot in leading
            )
        return self._inputs[id(graph)]

    def leads_to(self, graph: UiGraph, name: str) -> list[Leaf | Deeper]:
        """Lists the targets of a subgraph's input."""
        return [target for slot, target in self._entered(graph) if graph.inputs[slot].name == name]

    def target(self, graph: UiGraph, proxy: Proxy) -> Target | None:
        """Returns the target of an entry in `proxyWidgets`; None if it does not exist."""
        if proxy.node == OWN:
            known = any(port.name == proxy.name for port in graph.inputs)
            return Own(proxy.name) if known else None
        first, _, rest = proxy.node.partition(
            ":"
        )  # earlier versions of this program wrote the full path
        node = graph.nodes.get(first)
        if node is None:
            return None
        inner = self.document.subgraphs.get(node.type)
        if rest and inner is None:
            return None
        if inner is None:
            return self._linked(graph, Leaf(first, _plain(proxy.name)[0]))
        deeper = (
            self.target(inner, Proxy(rest, proxy.name, proxy.owner))
            if rest
            else self._found(self._shown_by(node, inner), proxy)
        )
        return None if deeper is None else self._linked(graph, Deeper(first, deeper))

    def _shown_by(self, node: UiNode, inner: UiGraph) -> list[_Shown]:
        """Lists the widgets that a subgraph node shows."""
        if id(node) not in self._shown:
            targets: list[tuple[str, Target]] = [
                (name, Own(name)) for name in self.shown_inputs(inner)
            ]
            for proxy in filter(None, node.proxies):
                target = self.target(inner, proxy)
                targets += [(proxy.name, target)] if target is not None else []
            self._shown[id(node)] = [
                _Shown(name, self._ends_of(inner, target), target) for name, target in targets
            ]
        return self._shown[id(node)]

    def _found(self, shown: Sequence[_Shown], wanted: Proxy) -> Target | None:
        """Finds a widget by its name on the node, or by the names further inside."""
        name, number = _plain(wanted.name)
        owner = number or wanted.owner
        tests: list[Callable[[_Shown], bool]] = [
            lambda one: not wanted.owner and one.name == wanted.name,
            lambda one: bool(owner) and (owner, name) in one.ends,
            lambda one: not owner and _plain(one.name)[0] == name,
            lambda one: not owner and any(name == widget for _, widget in one.ends),
            lambda one: one.name == name,  # the owner has been renumbered since
        ]
        return next((one.target for test in tests for one in shown if test(one)), None)

    def _ends_of(self, graph: UiGraph, target: Target) -> frozenset[tuple[str, str]]:
        """Returns the (node id, widget) pairs on the path to a target."""
        key = id(graph), target
        if key in self._ends:
            return self._ends[key]
        found: set[tuple[str, str]] = set()
        match target:
            case Leaf(node, name):
                found.add((node, name))
            case Own(name):
                for slot, reached in self._entered(graph):
                    if graph.inputs[slot].name == name:
                        found |= self._ends_of(graph, reached)
            case Deeper(node, deeper):
                inner = self.document.subgraphs[graph.nodes[node].type]
                found |= {(node, deeper.name)} if isinstance(deeper, Own) else set()
                found |= self._ends_of(inner, deeper)
        self._ends[key] = frozenset(found)
        return self._ends[key]

    def _linked(self, graph: UiGraph, target: Target) -> Target:
        """Returns the subgraph's own input that leads to the target; otherwise the target."""
        slots = (slot for slot, reached in self._entered(graph) if reached == target)
        slot = next(slots, None)
        return target if slot is None else Own(graph.inputs[slot].name)

    def _entered(self, graph: UiGraph) -> list[tuple[int, Leaf | Deeper]]:
        """Lists the targets of a subgraph's inputs, each with the position of its input."""
        if id(graph) not in self._entering:
            self._entering[id(graph)] = [
                (
                    link.origin_slot,
                    Deeper(node.id, Own(port.name))
                    if node.type in self.document.subgraphs
                    else Leaf(node.id, port.name),
                )
                for link in graph.links.values()
                if link.origin == graph.entry and link.origin_slot < len(graph.inputs)
                if (node := graph.nodes.get(link.target)) is not None
                for port in node.inputs[link.target_slot : link.target_slot + 1]
            ]
        return self._entering[id(graph)]

    def _is_widget(self, graph: UiGraph, target: Leaf | Deeper) -> bool:
        node = graph.nodes[target.node]
        inner = self.document.subgraphs.get(node.type)
        name = target.name if isinstance(target, Leaf) else ""
        if isinstance(target, Deeper) and isinstance(target.target, Own) and inner is not None:
            name = target.target.name
            if name in self.shown_inputs(inner):
                return True
        return any(port.name == name and port.widget for port in node.inputs)


def _plain(name: str) -> tuple[str, str]:
    """Splits a name such as `5: steps` into the widget's name and the id of its node."""
    owner = ""
    while match := PREFIXED.fullmatch(name):
        owner, name = match[1], match[2]
    return name, owner


def _by_name(inside: UiGraph, values: Mapping[str, Any]) -> Values:
    return {Own(port.name): values[port.name] for port in inside.inputs if port.name in values}


def _note_beyond(node: UiNode, widgets: int, notes: list[str], where: str) -> None:
    beyond = node.values[widgets:] if not isinstance(node.values, Mapping) else ()
    if any(value is not None for value in beyond):
        notes.append(
            f"{where}: {len(node.values)} values for {widgets} widgets of the subgraph; the rest "
            "were left out"
        )
