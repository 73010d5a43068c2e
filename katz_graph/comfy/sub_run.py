"""Computes the result of a built-in node that a pack calls; samples a step region at once."""

from __future__ import annotations

from typing import Any

from katz_graph.comfy.finder import installed
from katz_graph.comfy.missing import refuse
from katz_graph.context import Context
from katz_graph.graph import Expansion, Link
from katz_graph.ir.region import END
from katz_graph.node import WithUi
from katz_graph.planner.region import bind_region, region_nodes
from katz_graph.scope import current


def finished(result: Any, context: Context) -> tuple[Any, ...]:
    """Returns the outputs behind a node's result, without what it has for editors. NotThere for an
    expansion to anything but a step region.
    """
    if isinstance(result, WithUi):
        result = result.result
    if not isinstance(result, Expansion):
        return tuple(result)
    graph, types = result.graph, installed().types
    sampled: dict[str, tuple[Any, ...]] = {}

    def value(output: Any) -> Any:
        if not isinstance(output, Link):
            return output
        call = graph.nodes[output.node]
        if types[call.type].stage != END:
            refuse(f"a call of the node {call.type} inside another node")
        if output.node not in sampled:
            now = current()
            region = bind_region(graph, types, region_nodes(graph, output.node), {}, "" if now is None else now.node)
            sampled[output.node] = context.engine.sample(region, context)
        return sampled[output.node][output.output]

    return tuple(value(output) for output in result.outputs)
