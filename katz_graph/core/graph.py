"""Defines the graph as frozen data. Validation, hashing, expansion and planning are functions over
it in other modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Link:
    """Output number `output` of node `node`."""

    node: str
    output: int


class BadLink(list[Any]):
    """A list in an API prompt that is not a link; a list as a value is marked there as one."""


@dataclass(frozen=True, slots=True)
class NodeCall:
    """One node: its type and, for each input, a value or a link."""

    type: str
    inputs: Mapping[str, Any]
    title: str = ""

    def links(self) -> Iterator[tuple[str, Link]]:
        return ((name, value) for name, value in self.inputs.items() if isinstance(value, Link))


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes by id, in the order of the file."""

    nodes: Mapping[str, NodeCall] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Expansion:
    """A node returns this to be replaced by a graph: ids in `graph` are its own; `outputs` are
    links into it, or values.

    `shown` has, for ids in `graph`, the nodes of the run that they are to be shown as; the others
    are shown as the node itself.
    """

    graph: Graph
    outputs: tuple[Any, ...]
    shown: Mapping[str, str] = field(default_factory=dict)
