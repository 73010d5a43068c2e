"""Defines a workflow with its graph and the other parts of its file. Reads and writes Katz Graph's
wrapper: an API document with layout and run options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph
from katz_graph.core.messages import show
from katz_graph.formats.api import from_api, holds_infinite, to_api

FORMAT = "katz"
VERSION = 1
PARTS = ("format", "version", "graph", "layout", "run")


@dataclass(frozen=True, slots=True)
class Workflow:
    """A graph and the other parts of its file."""

    graph: Graph
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Layout, unchanged from the file."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Run options (seed, devices, allow), unchanged from the file."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Parts unknown to this version, unchanged from the file."""
    source: str = ""
    notes: tuple[str, ...] = ()
    """Lines for the user about parts of the file that could not be read."""
    typed: Mapping[str, str] | None = None
    """None if the graph has the texts to send. For a graph with texts as typed, maps those that
    differ to the texts to send.
    """
    is_prompt: bool = False
    """True for a client's API prompt, in which missing values do not get defaults."""


def is_native(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("format"), str)


def from_native(document: Mapping[str, Any]) -> Workflow:
    """Reads a workflow from a parsed wrapper. InputError for another format, a newer version, or
    malformed parts.
    """
    if document["format"] != FORMAT:
        raise InputError(f'format is {show(document["format"])}, expected "{FORMAT}"')
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(f"version is {show(version)}, expected {VERSION}")
    if version > VERSION:
        raise InputError(
            f"version {version} was written by a newer Katz Graph; this one reads up to "
            f"version {VERSION}"
        )
    if "graph" not in document:
        raise InputError('has no "graph"')
    around = {part: document.get(part, {}) for part in ("layout", "run")}
    for part, value in around.items():
        if not isinstance(value, Mapping):
            raise InputError(f"{part} is {show(value)}, expected an object")
    extra = {key: value for key, value in document.items() if key not in PARTS}
    for part, value in {**around, **extra}.items():
        if holds_infinite(value):
            raise InputError(f"{part} contains NaN or infinity")
    return Workflow(from_api(document["graph"]), around["layout"], around["run"], extra)


def to_native(workflow: Workflow) -> dict[str, Any]:
    """Converts a workflow to its wrapper; `from_native` restores the workflow."""
    parts = {"layout": dict(workflow.layout), "run": dict(workflow.run)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "graph": to_api(workflow.graph),
        **{part: value for part, value in parts.items() if value},
        **workflow.extra,
    }
