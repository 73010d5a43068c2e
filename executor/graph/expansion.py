"""Adds the nodes of expansions to the nodes of the run, and resolves the outputs of expansions."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from katz_graph.core.errors import RunError
from katz_graph.core.graph import Expansion, Link, NodeCall
from katz_graph.executor.graph.calls import expected_outputs
from katz_graph.executor.graph.expansion_ui import last_part
from katz_graph.executor.graph.lists import Listed, elements
from katz_graph.executor.graph.node_state import NodeState, Outputs, States, output_of, source_of
from katz_graph.node.types import NodeType

# limit of nodes from all expansions of one run; an endless loop would fill the memory
MAX_EXPANDED_NODES = 100_000


class Splicer:
    """Adds the expansions of one run to `states`. Types in `overlaps` are asynchronous."""

    def __init__(
        self,
        states: dict[str, NodeState],
        registry: Mapping[str, NodeType],
        overlaps: Container[str],
    ) -> None:
        self._states, self._registry, self._overlaps = states, registry, overlaps
        self._numbers: dict[str, int] = {}  # last number assigned to each name
        self._given: set[str] = set()
        self._made = 0

    def put(self, node: NodeState, results: Sequence[Any]) -> list[NodeState]:
        """Creates the nodes that `node` expands to, from one result per run. Returns the nodes for
        which `node` must wait.
        """
        rows: list[Outputs] = []
        parts: list[NodeState] = []
        for result in results:
            row = expected_outputs(node.type, result)
            if isinstance(result, Expansion):
                row, made = self._spliced(node, result)
                parts += made
            rows.append(row)
        node.expanded, node.parts = rows, parts
        roots = [
            source_of(self._states, value)
            for row in rows
            for value in row
            if isinstance(value, Link)
        ]
        return roots + [part for part in parts if part.kind is not None and part.kind.is_output]

    def _spliced(self, node: NodeState, expansion: Expansion) -> tuple[Outputs, list[NodeState]]:
        """Creates the nodes of one expansion. Links to ids not in the expansion refer to nodes
        outside. Raises RunError if the run has created too many nodes.
        """
        self._made += len(expansion.graph.nodes)
        if self._made > MAX_EXPANDED_NODES:
            raise RunError(
                f"expands without end: this run has made more than {MAX_EXPANDED_NODES:,} nodes; "
                "check when its loop ends"
            )
        ids = self._new_ids(node.origin, expansion)

        def moved(value: Any) -> Any:
            return (
                Link(ids[value.node], value.output)
                if isinstance(value, Link) and value.node in ids
                else value
            )

        scope = {
            ids[inner]: NodeCall(
                call.type, {name: moved(value) for name, value in call.inputs.items()}, call.title
            )
            for inner, call in expansion.graph.nodes.items()
        }
        parts = []
        for inner, identifier in ids.items():
            call, shown_as = scope[identifier], expansion.shown.get(inner, "")
            shown = self._states.get(ids.get(shown_as, shown_as), node)
            order = (call.type not in self._overlaps, node.order[1], len(self._states))
            part = NodeState(
                identifier, call, self._registry.get(call.type), order, shown.origin, scope, node
            )
            self._states[identifier] = part
            parts.append(part)
        return tuple(map(moved, expansion.outputs)), parts

    def _new_ids(self, origin: str, expansion: Expansion) -> dict[str, str]:
        return {inner: self.new_id(origin, last_part(inner)) for inner in expansion.graph.nodes}

    def new_id(self, origin: str, part: str) -> str:
        """Creates the id `<node of the file>.<last part of the id in the expansion>`, numbered from
        `#2` if it exists. So ids do not grow in a loop in which each round derives ids from the
        last.
        """
        name = identifier = f"{origin}.{part}"
        while identifier in self._states or identifier in self._given:
            self._numbers[name] = self._numbers.get(name, 1) + 1
            identifier = f"{name}#{self._numbers[name]}"
        self._given.add(identifier)
        return identifier


def delivered(states: States, node: NodeState) -> list[Outputs]:
    """Returns the outputs of a node's expansions. A link to a list output becomes the list."""
    assert node.expanded is not None
    gives = (*node.type.gives_lists, *(False for _ in node.type.outputs))

    def value_of(number: int, value: Any) -> Any:
        if not isinstance(value, Link):
            return value
        came = output_of(states, value)
        return Listed(tuple(elements(came))) if gives[number] else came

    return [
        tuple(value_of(number, value) for number, value in enumerate(row)) for row in node.expanded
    ]
