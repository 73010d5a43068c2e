"""Defines a workflow as it was read: the graph, and its surroundings in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from katz_graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Workflow:
    """A graph and its surroundings. `layout` (positions), `run` (options: seed, devices, allow) and
    `extra` (unknown to this version) stay as they came.

    `notes` are lines for the person: parts of the file that could not be named or followed.
    """

    graph: Graph
    layout: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()
