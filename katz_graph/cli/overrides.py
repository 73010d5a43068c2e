"""`--set NODE.INPUT=VALUE` and `--seed N`: changes to a graph that name what they changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.errors import InputError
from katz_graph.graph import Graph, Link
from katz_graph.node import NodeType
from katz_graph.wording import suggest

SEEDS = ("seed", "noise_seed")
TEXTUAL = ("STRING", "COMBO")


def set_inputs(graph: Graph, types: Mapping[str, NodeType], assignments: Sequence[str]) -> tuple[Graph, list[str]]:
    """The graph with inputs set, and a line per change. A node is named by id, title or type, where only one has it."""
    notes = []
    for assignment in assignments:
        target, equals, text = assignment.partition("=")
        name, dot, field = target.rpartition(".")
        if not (equals and dot and name and field):
            raise InputError(f"--set {assignment}: expected NODE.INPUT=VALUE, for example 3.steps=30")
        identifier = find_node(graph, name, f"--set {assignment}")
        call = graph.nodes[identifier]
        known = types[call.type].inputs if call.type in types else {}
        if field not in call.inputs and known and field not in known:
            raise InputError(f"--set {assignment}: node {identifier} ({call.type}) has no input {field!r}{suggest(field, known)}")
        value = text if field in known and known[field].socket in TEXTUAL else _value(text)
        graph = _with_input(graph, identifier, field, value)
        notes.append(f"node {identifier} ({call.type}): {field} = {json.dumps(value, ensure_ascii=False)}")
    return graph, notes


def set_seed(graph: Graph, types: Mapping[str, NodeType], seed: int) -> tuple[Graph, list[str]]:
    """The graph with `seed` in every seed that is not linked, and a line per change. InputError when there is none."""
    notes = []
    for identifier, call in graph.nodes.items():
        for field in SEEDS:
            takes = call.type in types and field in types[call.type].inputs
            if takes and not isinstance(call.inputs.get(field), Link):
                graph = _with_input(graph, identifier, field, seed)
                notes.append(f"node {identifier} ({call.type}): {field} = {seed}")
    if not notes:
        raise InputError(f"--seed {seed}: no node of this workflow takes a seed")
    return graph, notes


def first_seed(graph: Graph) -> int | None:
    """The first literal seed of a graph."""
    seeds = (call.inputs[field] for call in graph.nodes.values() for field in SEEDS if isinstance(call.inputs.get(field), int))
    return next(seeds, None)


def _with_input(graph: Graph, identifier: str, field: str, value: Any) -> Graph:
    call = graph.nodes[identifier]
    return Graph({**graph.nodes, identifier: replace(call, inputs={**call.inputs, field: value})})


def find_node(graph: Graph, name: str, option: str) -> str:
    """The id of a node that an option names by id, title or type. InputError when there is none, or several."""
    if name in graph.nodes:
        return name
    found = [key for key, call in graph.nodes.items() if name in (call.title, call.type)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{option}: {name!r} is the name of several nodes ({', '.join(found)}); use an id")
    raise InputError(f"{option}: there is no node {name!r}{suggest(name, graph.nodes)}")


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
