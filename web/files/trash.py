"""Moves users' files into a trash folder and back. Must not know routes and jobs."""

from __future__ import annotations

from pathlib import Path

from katz_graph.core.messages import show
from katz_graph.files.output_files import take, unfinished
from katz_graph.web.files.paths import file_state, inside, parts_of
from katz_graph.web.files.uploads import SAME_NAMES, candidates, disk_refusals
from katz_graph.web.http.responses import Refusal

TRASH = ".trash"  # inside the users' folder; its name is hidden, so clients cannot name files in it


def trash(folder: Path, name: str) -> str | None:
    """Moves a file below `folder` into the trash. Returns its name in the trash; None if it does
    not exist.
    """
    return _move(folder, name, folder / TRASH)


def restore(folder: Path, name: str) -> str | None:
    """Moves a file out of the trash. Returns its new name, or None if it does not exist."""
    return _move(folder / TRASH, name, folder)


def _move(source: Path, name: str, goal: Path) -> str | None:
    """Moves a file to the same place below `goal`, under another name if the name is taken."""
    parts = parts_of(name)
    if not parts:
        raise Refusal(400, "the name of a file is empty")
    *above, last = parts
    path = inside(source, *above) / last
    if file_state(path) is None:
        return None
    there = inside(goal, *above)
    with disk_refusals():
        there.mkdir(parents=True, exist_ok=True)
        moved = unfinished(there)
        try:
            path.replace(moved)  # does not affect a file stored at `path` later
        except FileNotFoundError:
            return None
        free = None
        try:
            free = next((one for one in candidates(last) if take(moved, there / one)), None)
        finally:
            if free is None and not path.exists():
                moved.replace(path)
            moved.unlink(missing_ok=True)
    if free is None:
        raise Refusal(409, f"there are {SAME_NAMES:,} other files called {show(last)}")
    return "/".join((*above, free))
