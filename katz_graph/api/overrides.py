"""Changes a graph before it runs, as `--set NODE.INPUT=VALUE` and `--seed N` say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.errors import InputError
from katz_graph.graph import Graph, Link
from katz_graph.messages import suggest
from katz_graph.node import Input, NodeType

SEEDS = ("seed", "noise_seed")
TEXTUAL = ("STRING", "COMBO")

Assignments = Mapping[str, Any] | Sequence[str]
"""Values by `NODE.INPUT`, or texts `NODE.INPUT=VALUE`, whose values are JSON or text."""


def set_inputs(graph: Graph, types: Mapping[str, NodeType], assignments: Assignments) -> tuple[Graph, list[str]]:
    """Sets inputs; returns the graph and a line per change. A node is named by id, title or type,
    where only one has it.
    """
    notes = []
    for option, target, given in _pairs(assignments):
        name, dot, field = target.rpartition(".")
        if not (dot and name and field):
            raise InputError(f"{option}: expected NODE.INPUT=VALUE, for example 3.steps=30")
        identifier = find_node(graph, name, option)
        call = graph.nodes[identifier]
        known = types[call.type].inputs if call.type in types else {}
        if field not in call.inputs and known and field not in known:
            raise InputError(f"{option}: node {identifier} ({call.type}) has no input {field!r}{suggest(field, known)}")
        value = given if isinstance(assignments, Mapping) else _value(given, known.get(field))
        graph = _with_input(graph, identifier, field, value)
        notes.append(f"node {identifier} ({call.type}): {field} = {json.dumps(value, ensure_ascii=False, default=repr)}")
    return graph, notes


def _pairs(assignments: Assignments) -> Iterator[tuple[str, str, Any]]:
    """Yields assignments as (their name in messages, target, value)."""
    if isinstance(assignments, Mapping):
        yield from ((f"--set {target}={value}", target, value) for target, value in assignments.items())
        return
    for assignment in (assignments,) if isinstance(assignments, str) else assignments:
        target, equals, text = assignment.partition("=")
        yield f"--set {assignment}", target if equals else "", text


def set_seed(graph: Graph, types: Mapping[str, NodeType], seed: int) -> tuple[Graph, list[str]]:
    """Sets `seed` in every seed that is not linked; returns the graph and a line per change.
    InputError when there is none.
    """
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
    """Returns the first literal seed of a graph."""
    seeds = (call.inputs[field] for call in graph.nodes.values() for field in SEEDS if isinstance(call.inputs.get(field), int))
    return next(seeds, None)


def _with_input(graph: Graph, identifier: str, field: str, value: Any) -> Graph:
    call = graph.nodes[identifier]
    return Graph({**graph.nodes, identifier: replace(call, inputs={**call.inputs, field: value})})


def find_node(graph: Graph, name: str, option: str) -> str:
    """Finds the id of a node that an option names by id, title or type. InputError when there is
    none, or several.
    """
    if name in graph.nodes:
        return name
    found = [key for key, call in graph.nodes.items() if name in (call.title, call.type)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"{option}: {name!r} is the name of several nodes ({', '.join(found)}); use an id")
    raise InputError(f"{option}: there is no node {name!r}{suggest(name, graph.nodes)}")


def _value(text: str, expected: Input | None) -> Any:
    """Returns the text itself for an input that takes text, else parsed where it is JSON."""
    if expected is not None and expected.socket in TEXTUAL:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
