"""Reads a workflow in any form, changes it, and checks it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from katz_graph.api.builder import AddedNode, Node, Output, node_id
from katz_graph.api.builder import Graph as GraphBuilder
from katz_graph.api.devices import check_run_options
from katz_graph.api.overrides import Assignments, find_node, set_inputs, set_seed
from katz_graph.approximations import allowed_names
from katz_graph.checks.validate import check
from katz_graph.errors import Cancelled, InputError, KatzError, RunError
from katz_graph.files.folders import Folders
from katz_graph.formats.api import to_api
from katz_graph.formats.read import parse_workflow, read_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow
from katz_graph.graph import Graph
from katz_graph.messages import listed
from katz_graph.packs import Registry

Source = str | PathLike[str] | Mapping[str, Any] | GraphBuilder | Graph
"""A file of any format or a picture that carries a workflow, its parsed JSON, or a graph."""

Targets = Node | Iterable[Node]
"""One node or several."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes one run against its file. Without `targets` the output nodes run."""

    seed: int | None = None
    set: Assignments = ()
    targets: Targets = ()


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A workflow as it runs: `targets` can run, `refused` cannot, and `problems` are the lines that
    say why.
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
        """Returns the beginning of a message about the whole workflow."""
        return f"{self.workflow.source}: " if self.workflow.source else ""

    def error(self, failure: KatzError | None) -> KatzError | None:
        """Combines what was refused before a run and what failed in it into one error."""
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
    """Reads a workflow, makes the changes and checks all of it; reports every change and warning.

    InputError when it cannot be read or changed; faults of its nodes are `problems`.
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
    nodes: Iterable[Node] = (wanted,) if isinstance(wanted, (str, int, AddedNode, Output)) else wanted
    targets = [find_node(graph, name, f"--target {name}") for name in map(node_id, nodes)]
    checked = check(graph, registry, folders, targets=targets or None)
    for warning in checked.warnings:
        warn(str(warning))
    prepared = PreparedRun(replace(workflow, graph=checked.graph), checked.targets, checked.refused, ())
    return replace(prepared, problems=tuple(f"{prepared.named}{problem}" for problem in checked.errors))


def read(source: Source, registry: Registry) -> Workflow:
    """Reads a workflow from a file, a picture, parsed JSON or a graph. InputError with one line a
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
    """Builds text chunks of pictures that say what ran: the graph, also for the node editor."""
    texts = {"prompt": json.dumps(to_api(workflow.graph))}
    with suppress(InputError):  # spare nodes may have links that lead nowhere, which the editor's format cannot say
        texts["workflow"] = json.dumps(to_ui(workflow, signatures(registry)))
    return texts
