"""Provides a graph of trivial nodes, and adds a node type to them."""

from __future__ import annotations

from typing import Any

from trivial_nodes import TYPES, node

from katz_graph.core.graph import Expansion, Graph
from katz_graph.node.types import ANY, Input, NodeType, Output
from katz_graph.packs import Registry

COUNT = Input("n", "INT", required=True, knob=True)
SUM = {
    "9": node("Number", value=1),
    "3": node("Number", value=2),
    "5": node("Add", a=["9", 0], b=["3", 0]),
    "4": node("Save", value=["5", 0]),
    "7": node("Number", value=7),
}


def custom(
    name: str, run: Any, inputs: tuple[Input, ...] = (), outputs: int = 1, **options: Any
) -> Registry:
    """Returns a registry of the trivial nodes and one more."""
    ports = tuple(Output(f"out{number}", ANY) for number in range(outputs))
    kind = NodeType(
        name,
        name,
        "test",
        "",
        {port.name: port for port in inputs},
        ports,
        options.pop("is_output", False),
        run,
        **options,
    )
    return Registry({**TYPES, name: kind})


def expanding(graph: Graph, *outputs: Any) -> Registry:
    return custom(
        "Expand",
        lambda context, values: Expansion(graph, outputs),
        (Input("value", ANY, required=False, knob=False),),
        outputs=len(outputs),
    )
