"""Defines a workflow as it was read (the graph, and its surroundings in the file), and reads and
writes Katz Graph's own form of it: an API document with layout and run options.
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
    """A graph and its surroundings. `layout` (positions), `run` (options: seed, devices, allow) and
    `extra` (unknown to this version) stay as they came.

    `notes` are lines for the person: parts of the file that could not be named or followed. `typed`
    is None if the texts of the graph are those that are sent; otherwise they stand as they were
    typed, and it says which of them are sent as something else than they say.
    """

    graph: Graph
    layout: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()
    typed: Mapping[str, str] | None = None
    is_prompt: bool = False
    """True for an API prompt, as clients send it: no default stands for a value that is absent."""


def is_native(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("format"), str)


def from_native(document: Mapping[str, Any]) -> Workflow:
    """Reads the workflow of a parsed wrapper. InputError for another format, a newer version, or
    parts that are no objects.
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
            raise InputError(f"{part} holds NaN or infinity")
    return Workflow(from_api(document["graph"]), around["layout"], around["run"], extra)


def to_native(workflow: Workflow) -> dict[str, Any]:
    """Writes the wrapper of a workflow; `from_native` of it is the workflow again."""
    parts = {"layout": dict(workflow.layout), "run": dict(workflow.run)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "graph": to_api(workflow.graph),
        **{part: value for part, value in parts.items() if value},
        **workflow.extra,
    }
