"""Reads and writes ComfyUI's API format: `{"id": {"class_type", "inputs", "_meta"?}}`. A link is
`["id", output]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import BadLink, Graph, Link, NodeCall
from katz_graph.core.messages import one_line, shorten, show
from katz_graph.node.types import NodeType

LITERAL = "__value__"  # {"__value__": [...]} is a literal list, not a link


def from_api(document: Any) -> Graph:
    """Converts a parsed API document to a graph. InputError with one line per malformed node."""
    if not isinstance(document, dict):
        raise InputError(
            f'is {show(document)}, not an object of nodes like {{"1": {{"class_type": ..., '
            f'"inputs": ...}}}}'
        )
    if not document:
        raise InputError("has no nodes")
    problems: list[str] = []
    nodes = {
        str(identifier): _node(str(identifier), node, problems)
        for identifier, node in document.items()
    }
    if problems:
        raise InputError("\n".join(problems))
    return Graph(nodes)


def to_api(graph: Graph) -> dict[str, Any]:
    """Converts a graph to an API document; `from_api` restores the graph."""
    return {identifier: _written(call) for identifier, call in graph.nodes.items()}


def with_defaults(graph: Graph, types: Mapping[str, NodeType]) -> Graph:
    """Fills in the defaults of widgets without a value, which an API prompt must contain."""

    def filled(call: NodeCall) -> NodeCall:
        kind = types.get(call.type)
        defaults = {
            name: port.default
            for name, port in (kind.inputs.items() if kind else ())
            if port.knob
            and port.default is not None
            and port.shown_for is None
            and call.inputs.get(name) is None
        }
        return replace(call, inputs={**call.inputs, **defaults}) if defaults else call

    return Graph({identifier: filled(call) for identifier, call in graph.nodes.items()})


def _node(identifier: str, node: Any, problems: list[str]) -> NodeCall:
    def report(problem: str) -> None:
        problems.append(f"node {one_line(shorten(identifier))}{problem}")

    if not isinstance(node, dict):
        report(f' is {show(node)}, expected an object with "class_type" and "inputs"')
        return NodeCall("", {})
    kind, inputs, meta = node.get("class_type"), node.get("inputs", {}), node.get("_meta")
    if "class_type" not in node:
        report(' has no "class_type"')
    elif not isinstance(kind, str) or not kind:
        report(f": class_type is {show(kind)}, expected a name")
    if not isinstance(inputs, dict):
        report(f": inputs is {show(inputs)}, expected an object")
        inputs = {}
    values = {key: _value(value) for key, value in inputs.items()}
    for key, value in values.items():
        if holds_infinite(value):
            report(f": input {show(key)} contains NaN or infinity")
    title = meta.get("title") if isinstance(meta, dict) else None
    return NodeCall(
        kind if isinstance(kind, str) else "", values, title if isinstance(title, str) else ""
    )


def _value(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {LITERAL}:
        return value[LITERAL]
    if not isinstance(value, list):
        return value
    if len(value) != 2:
        return BadLink(value)
    node, output = value
    is_link = (
        isinstance(node, (str, int))
        and isinstance(output, int)
        and not isinstance(node, bool)
        and not isinstance(output, bool)
    )
    return Link(str(node), output) if is_link else BadLink(value)


def holds_infinite(data: Any) -> bool:
    """Returns whether a parsed value contains NaN or infinity anywhere."""
    if isinstance(data, float):
        return not math.isfinite(data)
    if not isinstance(data, (list, dict)):
        return False
    pending = [data]
    while pending:
        value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return True
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return False


def _written(call: NodeCall) -> dict[str, Any]:
    node: dict[str, Any] = {
        "class_type": call.type,
        "inputs": {name: _literal(value) for name, value in call.inputs.items()},
    }
    return node | {"_meta": {"title": call.title}} if call.title else node


def _literal(value: Any) -> Any:
    if isinstance(value, Link):
        return [value.node, value.output]
    if isinstance(value, BadLink):
        return list(value)
    ambiguous = isinstance(value, list) or (isinstance(value, dict) and value.keys() == {LITERAL})
    return {LITERAL: value} if ambiguous else value
