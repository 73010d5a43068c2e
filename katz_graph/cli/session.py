"""What `katz run` and `katz plan` share: settings, nodes, a checked workflow with its overrides, and the device."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from katz_graph.approximations import allowed_names
from katz_graph.cli.options import WorkflowOptions
from katz_graph.cli.overrides import find_node, set_inputs, set_seed
from katz_graph.devices import AUTO, DeviceList, check_dtype, check_present, parse_link
from katz_graph.errors import InputError
from katz_graph.events import Event, Warned
from katz_graph.folders import Folders
from katz_graph.formats.read import read_workflow
from katz_graph.formats.workflow import Workflow
from katz_graph.graph import Graph
from katz_graph.packs import Registry, load_registry
from katz_graph.places import parse_places
from katz_graph.settings import Settings
from katz_graph.validate import check


@dataclass(slots=True)
class Session:
    """A workflow ready to run. `targets` are the outputs that can run, `refused` those that cannot, `problems` the lines that say why."""

    path: Path
    options: WorkflowOptions
    settings: Settings
    registry: Registry
    workflow: Workflow
    graph: Graph
    folders: Folders
    targets: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    console: Console = field(default_factory=lambda: Console(stderr=True, highlight=False, soft_wrap=True))

    def say(self, message: str) -> None:
        """Print a line for people, on standard error."""
        self.console.print(escape(message))

    def warn(self, message: str) -> None:
        self.console.print(f"[yellow]warning:[/] {escape(message)}")

    def listen(self, event: Event) -> None:
        """Print the warnings of a run."""
        if isinstance(event, Warned):
            self.warn(event.message)

    @property
    def devices(self) -> DeviceList:
        return self.options.device_list(self.workflow.run.get("devices"))

    @property
    def dtype(self) -> str:
        """The number format, as the command line or the file has it."""
        return self.options.dtype or self.workflow.run.get("dtype") or AUTO

    @property
    def allowed(self) -> frozenset[str]:
        """Approximations by name, as the command line or the file allows them."""
        return allowed_names(self.options.allow) | allowed_names(self.workflow.run.get("allow") or "")


def open_session(path: Path, options: WorkflowOptions, partial: bool = False) -> Session:
    """Read, change and check a workflow. InputError with a line per problem; warnings are printed.

    With `partial` it is enough that one output can run.
    """
    allowed_names(options.allow)
    parse_link(options.link)
    settings = options.settings()
    folders = settings.folders()
    registry, pack_problems = load_registry(settings.packs, folders)
    workflow = read_workflow(path, registry)
    check_run_options(workflow.run)
    allowed_names(workflow.run.get("allow") or "")
    graph, notes = set_inputs(workflow.graph, registry, options.sets)
    seed = options.seed if options.seed is not None else workflow.run.get("seed")
    if seed is not None:
        graph, changed = set_seed(graph, registry, seed)
        notes += changed
    session = Session(path, options, settings, registry, workflow, graph, folders)
    for note in notes:
        session.say(f"set {note}")
    for problem in pack_problems:
        session.warn(str(problem))
    for note in workflow.notes:
        session.warn(note)
    targets = [find_node(graph, name, f"--target {name}") for name in options.targets]
    with contextlib.redirect_stdout(sys.stderr):  # what packs print; standard output is for scripts
        checked = check(graph, registry, folders, targets=targets or None)
    for warning in checked.warnings:
        session.warn(str(warning))
    session.graph, session.targets, session.refused = checked.graph, checked.targets, checked.refused
    session.problems = tuple(f"{path}: {problem}" for problem in checked.errors)
    if session.problems and not (partial and session.targets):
        raise InputError("\n".join(session.problems))
    check_present(session.devices)
    check_dtype(session.dtype, session.devices)
    parse_places(options.place, session.devices.names)
    return session


RUN_OPTIONS: dict[str, type] = {"seed": int, "devices": str, "dtype": str, "allow": str, "batching": bool}


def check_run_options(run: Mapping[str, Any]) -> None:
    """InputError when an option in the file's wrapper is not of its type."""
    for name, kind in RUN_OPTIONS.items():
        value = run.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise InputError(f"run option {name}: got {value!r}, expected {kind.__name__}")


def check_writable(folder: Path, option: str) -> None:
    """InputError when files cannot be written to a folder, which need not exist yet."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise InputError(f"{option}: {existing} is not a folder")
    if not os.access(existing, os.W_OK):
        raise InputError(f"{option}: {existing} cannot be written to")
