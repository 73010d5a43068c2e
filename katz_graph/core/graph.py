"""Defines the graph as frozen data. Other modules validate, hash, expand and plan it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Link:
    """Refers to output number `output` of node `node`."""

    node: str
    output: int


class BadLink(list[Any]):
    """Marks a list in an API prompt that is no valid link. List values are wrapped in a dict."""


@dataclass(frozen=True, slots=True)
class NodeCall:
    """Describes one node: its type and a value or link for each input."""

    type: str
    inputs: Mapping[str, Any]
    title: str = ""

    def links(self) -> Iterator[tuple[str, Link]]:
        return ((name, value) for name, value in self.inputs.items() if isinstance(value, Link))


@dataclass(frozen=True, slots=True)
class Graph:
    """Maps ids to nodes, in file order."""

    nodes: Mapping[str, NodeCall] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expansion:
    """Result of a node that is replaced by a graph. Ids in `graph` are local; `outputs` are values,
    or links into `graph`.

    `shown` maps ids in `graph` to the nodes of the run that represent them to users. The expanding
    node represents all others. `warnings` are for the user.
    """

    graph: Graph
    outputs: tuple[Any, ...]
    shown: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
