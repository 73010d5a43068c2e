"""Provides `comfy_execution.graph_utils` to packs: a builder of graphs that nodes expand to."""

from __future__ import annotations

from typing import Any

from katz_graph.comfy.missing import missing_names
from katz_graph.node.scope import ExecutionBlocker, current

__all__ = ["ExecutionBlocker", "GraphBuilder", "Node", "add_graph_prefix", "is_link"]
__getattr__ = missing_names(__name__, "")


def is_link(obj: Any) -> bool:
    """Returns whether a value is a link: a node id and an output number."""
    return (
        isinstance(obj, list)
        and len(obj) == 2
        and isinstance(obj[0], str)
        and type(obj[1]) in (int, float)
    )


class Node:
    """A node of a graph under construction."""

    def __init__(self, id: str, class_type: str, inputs: dict[str, Any]) -> None:
        self.id, self.class_type, self.inputs = id, class_type, inputs
        self.override_display_id: str | None = None

    def out(self, index: int) -> list[Any]:
        return [self.id, index]

    def set_input(self, key: str, value: Any) -> None:
        if value is None:
            self.inputs.pop(key, None)
        else:
            self.inputs[key] = value

    def get_input(self, key: str) -> Any:
        return self.inputs.get(key)

    def set_override_display_id(self, override_display_id: str) -> None:
        self.override_display_id = override_display_id

    def serialize(self) -> dict[str, Any]:
        shown = (
            {}
            if self.override_display_id is None
            else {"override_display_id": self.override_display_id}
        )
        return {"class_type": self.class_type, "inputs": self.inputs, **shown}


class GraphBuilder:
    """Builds nodes with ids that are unique among the builders of one node call."""

    def __init__(self, prefix: str | None = None) -> None:
        self.prefix = self.alloc_prefix() if prefix is None else prefix
        self.nodes: dict[str, Node] = {}
        self.id_gen = 1

    @classmethod
    def alloc_prefix(
        cls, root: str | None = None, call_index: int | None = None, graph_index: int | None = None
    ) -> str:
        now = current()
        number = 0 if now is None else next(now.graphs)
        return f"{root or ''}{number if graph_index is None else graph_index}."

    def node(self, class_type: str, id: str | None = None, **kwargs: Any) -> Node:
        """Adds a node, or returns the existing one with this id."""
        if id is None:
            id, self.id_gen = str(self.id_gen), self.id_gen + 1
        name = self.prefix + id
        return self.nodes.setdefault(name, Node(name, class_type, kwargs))

    def lookup_node(self, id: str) -> Node | None:
        return self.nodes.get(self.prefix + id)

    def finalize(self) -> dict[str, Any]:
        return {name: node.serialize() for name, node in self.nodes.items()}

    def replace_node_output(self, node_id: str, index: int, new_value: Any) -> None:
        """Replaces all links to an output by a value; None removes them."""
        output = [self.prefix + node_id, index]
        for node in self.nodes.values():
            for name in [
                name for name, value in node.inputs.items() if is_link(value) and value == output
            ]:
                node.set_input(name, new_value)

    def remove_node(self, id: str) -> None:
        del self.nodes[self.prefix + id]


def add_graph_prefix(
    graph: dict[str, Any], outputs: Any, prefix: str
) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Adds a prefix to the ids of a built graph. Also returns the renamed outputs."""

    def moved(value: Any) -> Any:
        return [prefix + value[0], value[1]] if is_link(value) else value

    renamed = {
        prefix + name: {
            **node,
            "inputs": {key: moved(value) for key, value in node.get("inputs", {}).items()},
        }
        for name, node in graph.items()
    }
    return renamed, tuple(moved(value) for value in outputs)
