"""Reads a workflow in any format, applies `--set NODE.INPUT=VALUE` and `--seed N`, and checks
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from katz_graph.api.builder import AddedNode, Node, Output, node_id
from katz_graph.api.builder import Graph as GraphBuilder
from katz_graph.api.devices import check_run_options
from katz_graph.checks.validate import check
from katz_graph.core.allowed_approximations import allowed_names
from katz_graph.core.errors import Cancelled, InputError, KatzError, RunError
from katz_graph.core.graph import Graph, Link
from katz_graph.core.messages import listed, suggest
from katz_graph.files.folders import Folders
from katz_graph.files.urls import shown
from katz_graph.formats.api import to_api
from katz_graph.formats.read import parse_workflow, read_workflow
from katz_graph.formats.secrets import hide_secrets
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow
from katz_graph.node.types import Input, NodeType
from katz_graph.packs import Registry

Source = str | PathLike[str] | Mapping[str, Any] | GraphBuilder | Graph
"""A file of any format, a picture with an embedded workflow, parsed JSON, or a graph."""

Targets = Node | Iterable[Node]
"""One node or several."""
SEEDS = ("seed", "noise_seed")
TEXTUAL = ("STRING", "COMBO")
Assignments = Mapping[str, Any] | Sequence[str]
"""Values by `NODE.INPUT`, or strings `NODE.INPUT=VALUE` with JSON or plain text as the value."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes to a workflow for one run. Without `targets` the output nodes run."""

    seed: int | None = None
    set: Assignments = ()
    targets: Targets = ()


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A workflow that is ready to run: `targets` can run, `refused` cannot, and `problems` explain
    why.
    """

    workflow: Workflow
    targets: tuple[str, ...]
    refused: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def graph(self) -> Graph:
        return self.workflow.graph

    @property
    def named(self) -> str:
        """Returns the prefix of a message about the whole workflow."""
        return f"{self.workflow.source}: " if self.workflow.source else ""

    def error(self, failure: KatzError | None) -> KatzError | None:
        """Combines the targets refused before a run and the failure of the run into one error."""
        if not self.problems or isinstance(failure, Cancelled):
            return failure
        failed = () if failure is None else (str(failure),)
        refused = f"some outputs were refused: node {listed(self.refused)}"
        return RunError("\n".join((*self.problems, *failed, refused)))


def prepare(
    source: Source,
    changes: Changes,
    registry: Registry,
    folders: Folders,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> PreparedRun:
    """Reads a workflow, applies the changes and checks every node; reports changes and warnings.

    InputError if the workflow cannot be read or changed. Errors of its nodes become `problems`.
    """
    workflow = read(source, registry)
    check_run_options(workflow.run)
    allowed_names(workflow.run.get("allow") or "")
    graph, notes = set_inputs(workflow.graph, registry, changes.set)
    seed = changes.seed if changes.seed is not None else workflow.run.get("seed")
    if seed is not None:
        graph, changed = set_seed(graph, registry, seed)
        notes += changed
    for note in notes:
        say(f"set {note}")
    for note in workflow.notes:
        warn(note)
    wanted = changes.targets
    nodes: Iterable[Node] = (
        (wanted,) if isinstance(wanted, (str, int, AddedNode, Output)) else wanted
    )
    targets = [find_node(graph, name, f"--target {name}") for name in map(node_id, nodes)]
    checked = check(graph, registry, folders, targets=targets or None)
    for warning in checked.warnings:
        warn(str(warning))
    prepared = PreparedRun(
        replace(workflow, graph=checked.graph), checked.targets, checked.refused, ()
    )
    return replace(
        prepared, problems=tuple(f"{prepared.named}{problem}" for problem in checked.errors)
    )


def read(source: Source, registry: Registry) -> Workflow:
    """Reads a workflow from a file, a picture, parsed JSON or a graph. InputError with one line per
    problem.
    """
    if isinstance(source, GraphBuilder):
        return Workflow(source.graph)
    if isinstance(source, Graph):
        return Workflow(source)
    if isinstance(source, Mapping):
        return parse_workflow(source, registry)
    return read_workflow(str(source), registry)


def metadata(workflow: Workflow, registry: Registry) -> dict[str, str]:
    """Builds the text chunks of a picture: the executed graph in API format and in the editor's
    format, without the secrets in URLs.
    """
    prompt = to_api(workflow.graph)
    texts = {"prompt": json.dumps(prompt)}
    # unused nodes may have dangling links, which the editor's format cannot express
    with suppress(InputError):
        texts["workflow"] = json.dumps(to_ui(workflow, signatures(registry)))
    return hide_secrets(texts, prompt, registry)


def set_inputs(
    graph: Graph, types: Mapping[str, NodeType], assignments: Assignments
) -> tuple[Graph, list[str]]:
    """Sets inputs; returns the graph and a line per change. A node is named by id, or by a unique
    title or type.
    """
    notes = []
    for option, target, given in _pairs(assignments):
        identifier, field = _split(graph, target, option)
        call = graph.nodes[identifier]
        known = types[call.type].inputs if call.type in types else {}
        if field not in call.inputs and known and field not in known:
            raise InputError(
                f"{option}: node {identifier} ({call.type}) has no input "
                f"{field!r}{suggest(field, known)}"
            )
        value = given if isinstance(assignments, Mapping) else _value(given, known.get(field))
        graph = _with_input(graph, identifier, field, value)
        value_text = shown(value) if isinstance(value, str) else value
        notes.append(
            f"node {identifier} ({call.type}): {field} = "
            f"{json.dumps(value_text, ensure_ascii=False, default=repr)}"
        )
    return graph, notes


def _split(graph: Graph, target: str, option: str) -> tuple[str, str]:
    """Splits NODE.INPUT into the node's id and the input's name. Both may contain dots; the longest
    prefix that names a node wins.
    """
    name, dot, field = target.rpartition(".")
    if not (dot and name and field):
        raise InputError(f"{option}: expected NODE.INPUT=VALUE, for example 3.steps=30")
    shorter = name
    while not nodes_called(graph, shorter) and "." in shorter:
        shorter = shorter.rpartition(".")[0]
    if nodes_called(graph, shorter):
        name, field = shorter, target[len(shorter) + 1 :]
    return find_node(graph, name, option), field


def _pairs(assignments: Assignments) -> Iterator[tuple[str, str, Any]]:
    """Yields assignments as (their name in messages, target, value)."""
    if isinstance(assignments, Mapping):
        yield from (
            (f"--set {target}={value}", target, value) for target, value in assignments.items()
        )
        return
    for assignment in (assignments,) if isinstance(assignments, str) else assignments:
        target, equals, text = assignment.partition("=")
        yield f"--set {assignment}", target if equals else "", text


def set_seed(graph: Graph, types: Mapping[str, NodeType], seed: int) -> tuple[Graph, list[str]]:
    """Sets every unlinked seed; returns the graph and a line per change. InputError if the graph
    has no such seed.
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
    seeds = (
        call.inputs[field]
        for call in graph.nodes.values()
        for field in SEEDS
        if isinstance(call.inputs.get(field), int)
    )
    return next(seeds, None)


def _with_input(graph: Graph, identifier: str, field: str, value: Any) -> Graph:
    call = graph.nodes[identifier]
    return Graph({**graph.nodes, identifier: replace(call, inputs={**call.inputs, field: value})})


def nodes_called(graph: Graph, name: str) -> list[str]:
    """Lists the ids of the nodes with this id, or else with this title or type."""
    if name in graph.nodes:
        return [name]
    return [key for key, call in graph.nodes.items() if name in (call.title, call.type)]


def find_node(graph: Graph, name: str, option: str) -> str:
    """Returns the id of the node that an option names by id, title or type. InputError unless
    exactly one matches.
    """
    found = nodes_called(graph, name)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{option}: {name!r} is the name of several nodes ({', '.join(found)}); use an id"
        )
    raise InputError(f"{option}: no node {name!r} in the workflow{suggest(name, graph.nodes)}")


def _value(text: str, expected: Input | None) -> Any:
    """Returns the text unchanged if the input takes text; otherwise parses it as JSON if it is
    valid JSON.
    """
    if expected is not None and expected.socket in TEXTUAL:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
