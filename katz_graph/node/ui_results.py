"""Builds the results of output nodes for editors and clients: files as `/view` serves them, and
texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from katz_graph.files.folders import TEMP
from katz_graph.node import WithUi
from katz_graph.node.types import Context

Result = TypeVar("Result")
Place = Literal["output", "temp"]


def with_ui(result: Result, **ui: Sequence[Any]) -> Result:
    """Adds `ui` to a result. The declared type stays the same, because only the graph run unwraps
    it.
    """
    return cast(Result, WithUi(result, ui))


def place_folder(context: Context, place: Place) -> Path:
    return context.output_directory / TEMP if place == "temp" else context.output_directory


def announced(context: Context, place: Place, paths: Iterable[Path]) -> list[dict[str, str]]:
    """Announces each file as soon as it is written. Returns the entries by which clients address
    the files.
    """
    root = place_folder(context, place).resolve()
    entries = []
    for path in paths:
        context.wrote(path)
        subfolder = path.parent.resolve().relative_to(root).as_posix()
        entries.append(
            {
                "filename": path.name,
                "subfolder": "" if subfolder == "." else subfolder,
                "type": place,
            }
        )
    return entries


def written(context: Context, ui: Mapping[str, Sequence[Any]]) -> list[Path]:
    """Returns the existing files that a node of any pack names in its `ui`."""
    named = (
        entry
        for entries in ui.values()
        if isinstance(entries, Sequence)
        for entry in entries
        if isinstance(entry, Mapping)
    )
    return [
        path for entry in named if (path := _path(context, entry)) is not None and path.is_file()
    ]


def _path(context: Context, entry: Mapping[str, Any]) -> Path | None:
    place, parts = entry.get("type"), (entry.get("subfolder") or "", entry.get("filename"))
    if place not in get_args(Place) or not all(
        isinstance(part, str) and "\0" not in part for part in parts
    ):
        return None
    return place_folder(context, cast(Place, place)).joinpath(*map(str, parts))
