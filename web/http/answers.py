"""Declares the responses of routes that ComfyUI does not have. Must not know the routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from katz_graph.models.text.recipe import TextSize
from katz_graph.planner.report.document import PlanData


@dataclass(frozen=True, slots=True)
class OpenedWorkflow:
    """Answers `/katz/open`: the editor's document, and lines for the user."""

    document: Mapping[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedWorkflow:
    """Answers `/katz/check`: the errors that `/prompt` would return. `targets` are the outputs that
    would run, `refused` the others.
    """

    error: Mapping[str, Any] | None
    node_errors: Mapping[str, Any]
    targets: tuple[str, ...]
    refused: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedWorkflow:
    """Answers `/katz/plan`: a plan per sampler that could be planned. `approximations`: the names
    that `allow` of a request may have.
    """

    plans: tuple[PlanData, ...]
    error: Mapping[str, Any] | None
    node_errors: Mapping[str, Any]
    notes: tuple[str, ...]
    approximations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CountedTexts:
    """Answers `/katz/tokens`: the lengths of prompts, by node and input."""

    texts: Mapping[str, Mapping[str, tuple[TextSize, ...]]]


@dataclass(frozen=True, slots=True)
class MovedFile:
    """A moved file: its previous name and its new one (`now`)."""

    name: str
    now: str


@dataclass(frozen=True, slots=True)
class MovedFiles:
    """Answers `/katz/files/trash` and `/katz/files/restore`. Omits missing files."""

    files: tuple[MovedFile, ...]


@dataclass(frozen=True, slots=True)
class OthersThere:
    """Answers `/katz/presence`: the user names of other pages, by open file."""

    files: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ListedPack:
    """A pack: its number of node types, whether it has scripts for ComfyUI's front end (not run),
    and the reasons why the pack or nodes were omitted.
    """

    name: str
    nodes: int
    scripts: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PackList:
    """Answers `/katz/packs`: the packs found at the start, with those that failed."""

    packs: tuple[ListedPack, ...]


def as_data(answer: OpenedWorkflow | CheckedWorkflow | PlannedWorkflow) -> dict[str, Any]:
    """Returns a response's fields without copying their data, which may be large."""
    return {field.name: getattr(answer, field.name) for field in fields(answer)}


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file: `name` is the `filename` of `/view`, `modified` in seconds since the epoch. `width`
    and `height` are in pixels, null unless the file is a picture; `job` is null if unknown or
    unfinished. `workflow`: the id of the job's document; `node`: the node that shows the file.
    """

    name: str
    type: Literal["input", "output"]
    bytes: int
    modified: float
    width: int | None
    height: int | None
    job: str | None
    workflow: str | None
    node: str | None


@dataclass(frozen=True, slots=True)
class FilePage:
    """Answers `/katz/files`, newest first. `next` is the `after` of the next page, or null."""

    files: tuple[ListedFile, ...]
    next: str | None
