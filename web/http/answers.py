"""Declares the responses of routes that ComfyUI does not have. Must not know how the routes compute
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from katz_graph.models.text.recipe import TextSize
from katz_graph.planner.report.document import PlanData


@dataclass(frozen=True, slots=True)
class OpenedWorkflow:
    """Answers `/katz/open`: the editor's document, and lines for the person."""

    document: Mapping[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedWorkflow:
    """Answers `/katz/check`: what `/prompt` would say. `targets` are the outputs that would run,
    `refused` those that would not.
    """

    error: Mapping[str, Any] | None
    node_errors: Mapping[str, Any]
    targets: tuple[str, ...]
    refused: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedWorkflow:
    """Answers `/katz/plan`: a plan for each sampler that could be planned."""

    plans: tuple[PlanData, ...]
    error: Mapping[str, Any] | None
    node_errors: Mapping[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CountedTexts:
    """Answers `/katz/tokens`: how long the texts of prompts are, by node and input."""

    texts: Mapping[str, Mapping[str, tuple[TextSize, ...]]]


@dataclass(frozen=True, slots=True)
class MovedFile:
    """A file that was moved: its name before, and the one that it has now."""

    name: str
    now: str


@dataclass(frozen=True, slots=True)
class MovedFiles:
    """Answers `/katz/files/trash` and `/katz/files/restore`. What was not there is not named."""

    files: tuple[MovedFile, ...]


@dataclass(frozen=True, slots=True)
class OthersThere:
    """Answers `/katz/presence`: what the people are called who have a file open, too."""

    files: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ListedPack:
    """A pack: how many node types it brings, whether it has scripts for ComfyUI's front end, which
    are not run, and why it, or a node of it, was left out.
    """

    name: str
    nodes: int
    scripts: bool
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PackList:
    """Answers `/katz/packs`: what was found at the start, and those that failed."""

    packs: tuple[ListedPack, ...]


def as_data(answer: OpenedWorkflow | CheckedWorkflow | PlannedWorkflow) -> dict[str, Any]:
    """Returns a response's fields without copying their data, which may be large."""
    return {field.name: getattr(answer, field.name) for field in fields(answer)}


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file: `name` is the `filename` of `/view`, `modified` in seconds since the epoch. Sizes in
    pixels are null for what is no picture, `job` where it is not known or not over. `workflow`: the
    id of the document that the job came from; `node`: the node that shows the file.
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
    """Answers `/katz/files`, newest first; `next` gives the following ones as `after`, null when
    there are none.
    """

    files: tuple[ListedFile, ...]
    next: str | None
