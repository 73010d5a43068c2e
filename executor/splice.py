"""The nodes of an expansion beside those of the graph that it was made in."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from katz_graph.graph import Expansion, Link, NodeCall


def splice(
    expansion: Expansion, origin: str, taken: Container[str], numbers: dict[str, int]
) -> tuple[dict[str, NodeCall], tuple[Any, ...]]:
    """The nodes under ids of the whole run, and the expansion's outputs. Links to ids that are not its own lead outside.

    An id is `<node of the file>.<id in the expansion>`, numbered when it is taken, so that it does not grow with nesting.
    `numbers` remembers the last number of each name.
    """
    ids: dict[str, str] = {}
    for inner in expansion.graph.nodes:
        name = identifier = f"{origin}.{inner}"
        while identifier in taken:
            numbers[name] = numbers.get(name, 1) + 1
            identifier = f"{name}.{numbers[name]}"
        ids[inner] = identifier

    def moved(value: Any) -> Any:
        return Link(ids[value.node], value.output) if isinstance(value, Link) and value.node in ids else value

    nodes = {
        ids[inner]: NodeCall(call.type, {name: moved(value) for name, value in call.inputs.items()}, call.title)
        for inner, call in expansion.graph.nodes.items()
    }
    return nodes, tuple(moved(value) for value in expansion.outputs)
