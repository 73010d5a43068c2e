"""Turns names that came from a client into paths of this machine; nothing else does. Must not know
what is in the files.
"""

from __future__ import annotations

import os
import re
import stat
import unicodedata
from pathlib import Path
from typing import Literal, get_args

from katz_graph.core.messages import show
from katz_graph.files.folders import ANNOTATED, MINI, TEMP, Folders
from katz_graph.web.http.responses import Refusal

Place = Literal["input", "output", "temp"]
PLACES: tuple[Place, ...] = get_args(Place)
PART_BYTES = 255  # of one name, as file systems have it
NAME_BYTES = 1024  # of all names together, far below what a system call takes
DEPTH = 32  # folders within folders
DRIVE = re.compile(r"[A-Za-z]:")
# no files where the data may be copied to
DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)
# control characters, halves of surrogate pairs, line separators
INVISIBLE = ("Cc", "Cs", "Zl", "Zp")
# change how a name reads
TURNING = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
)


def parts_of(name: str, hidden: bool = False) -> tuple[str, ...]:
    """Splits a relative name into its parts; none for the folder itself. Raises Refusal 400 with
    what is wrong with the name.

    `hidden`: whether parts may begin with a dot.
    """
    if len(name) > NAME_BYTES or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES:
        raise Refusal(400, f"a name has more than {NAME_BYTES} bytes")
    if "\\" in name or name.startswith(("/", "~")) or DRIVE.match(name):
        raise Refusal(400, f"{show(name)} is no relative name with '/' between its parts")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if len(parts) > DEPTH:
        raise Refusal(400, f"a name has more than {DEPTH} parts")
    for part in parts:
        _check(part, hidden)
    return parts


def inside(root: Path, *names: str, hidden: bool = False) -> Path:
    """Joins `names` below `root` and follows links. The path need not exist.

    Raises Refusal 400 for names that are not relative ones, 403 for links that lead out of `root`.
    """
    parts = [part for name in names for part in parts_of(name, hidden)]
    try:
        base = root.resolve()
        path = base.joinpath(*parts).resolve()
    except (OSError, RuntimeError):  # links in a circle, a path that is too long as a whole
        raise Refusal(400, f"{show('/'.join(parts))} cannot be a path here") from None
    if not path.is_relative_to(base):
        raise Refusal(403, f"{show('/'.join(parts))} leads out of its folder")
    return path


def file_state(path: Path) -> os.stat_result | None:
    """Returns size and times of an ordinary file; None for anything else (a pipe would never
    end).
    """
    try:
        state = path.lstat()
    except (OSError, ValueError):
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def folder_of(folders: Folders, place: Place) -> Path:
    """Returns the folder that a client calls `input`, `output` or `temp`."""
    return {"input": folders.input, "output": folders.output, "temp": folders.output / TEMP}[place]


def people_file(
    folders: Folders, filename: str, subfolder: str, place: Place
) -> tuple[Path, os.stat_result]:
    """Finds a file in the users' folders, and its state. `filename` may end in `[input]`,
    `[output]` or `[temp]` behind a space.

    Without such an ending it lies in `place`. Pictures that the package brings count as inputs.
    Raises Refusal 400, 403, 404.
    """
    if annotated := ANNOTATED.fullmatch(filename):
        filename = annotated[1]
        place = next(known for known in PLACES if known == annotated[2])
    if not parts_of(filename):
        raise Refusal(400, "filename is empty")
    roots = (folder_of(folders, place), *((MINI / "examples",) if place == "input" else ()))
    for root in roots:
        path = inside(root, subfolder, filename)
        state = file_state(path)
        if state is not None:
            return path, state
    raise Refusal(404, f"there is no {show(filename)} in {place}")


def _check(part: str, hidden: bool) -> None:
    if part == "..":
        raise Refusal(400, "a name holds '..'")
    if any(unicodedata.category(char) in INVISIBLE or char in TURNING for char in part):
        raise Refusal(400, f"the name {show(part)} holds characters that cannot be seen")
    if len(part.encode()) > PART_BYTES:
        raise Refusal(400, f"the name {show(part)} has more than {PART_BYTES} bytes")
    if part.startswith(".") and not hidden:
        raise Refusal(400, f"the name {show(part)} begins with a dot")
    if part.endswith((".", " ")) or DEVICES.match(part):
        raise Refusal(400, f"{show(part)} is no name that every system can have")
