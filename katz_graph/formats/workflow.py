"""A workflow as it was read: the graph, and what stands around it in the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from katz_graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Workflow:
    """`layout` (positions), `run` (options: seed, devices, allow) and `extra` (what this version
    does not know) stay as they came.

    `notes` are lines for the person: what of the file could not be named or followed.
    """

    graph: Graph
    layout: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()
