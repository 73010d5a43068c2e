"""Converts client names to paths of this machine; no other module does. Must not know the content
of files.
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
PART_BYTES = 255  # of one name, the limit of file systems
NAME_BYTES = 1024  # of the whole name, far below the limit of system calls
DEPTH = 32  # nested folders
DRIVE = re.compile(r"[A-Za-z]:")
# reserved names on Windows, where the data may be copied to
DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)
# control characters, surrogates, line separators
INVISIBLE = ("Cc", "Cs", "Zl", "Zp")
# characters that change the reading direction or are invisible
TURNING = frozenset(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
)


def parts_of(name: str, hidden: bool = False) -> tuple[str, ...]:
    """Splits a relative name into its parts; the folder itself has none. Raises Refusal 400 with
    the reason if the name is invalid.

    `hidden`: parts may begin with a dot.
    """
    if len(name) > NAME_BYTES or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES:
        raise Refusal(400, f"a name has more than {NAME_BYTES} bytes")
    if "\\" in name or name.startswith(("/", "~")) or DRIVE.match(name):
        raise Refusal(400, f"{show(name)} is not a relative path with '/' between its parts")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if len(parts) > DEPTH:
        raise Refusal(400, f"a name has more than {DEPTH} parts")
    for part in parts:
        _check(part, hidden)
    return parts


def inside(root: Path, *names: str, hidden: bool = False) -> Path:
    """Joins `names` below `root` and resolves links. The path need not exist.

    Raises Refusal 400 for names that are not relative, and 403 for links that lead out of `root`.
    """
    parts = [part for name in names for part in parts_of(name, hidden)]
    try:
        base = root.resolve()
        path = base.joinpath(*parts).resolve()
    except (OSError, RuntimeError):  # a cycle of links, or a path that is too long
        raise Refusal(400, f"{show('/'.join(parts))} is not a valid path on this system") from None
    if not path.is_relative_to(base):
        raise Refusal(403, f"{show('/'.join(parts))} points outside its folder")
    return path


def file_state(path: Path) -> os.stat_result | None:
    """Returns the state of a regular file; None for anything else (reading a pipe would block)."""
    try:
        state = path.lstat()
    except (OSError, ValueError):
        return None
    return state if stat.S_ISREG(state.st_mode) else None


def folder_of(folders: Folders, place: Place) -> Path:
    """Returns the folder of `input`, `output` or `temp`."""
    return {"input": folders.input, "output": folders.output, "temp": folders.output / TEMP}[place]


def find_user_file(
    folders: Folders, filename: str, subfolder: str, place: Place
) -> tuple[Path, os.stat_result]:
    """Returns the path and the state of a file in the users' folders.

    `filename` may end in ` [input]`, ` [output]` or ` [temp]`. Without such an ending, the file is
    in `place`. Bundled pictures count as inputs. Raises Refusal 400, 403, 404.
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
    raise Refusal(404, f"{show(filename)} not found in {place}")


def _check(part: str, hidden: bool) -> None:
    if part == "..":
        raise Refusal(400, "a name contains '..'")
    if any(unicodedata.category(char) in INVISIBLE or char in TURNING for char in part):
        raise Refusal(400, f"the name {show(part)} contains invisible characters")
    if len(part.encode()) > PART_BYTES:
        raise Refusal(400, f"the name {show(part)} has more than {PART_BYTES} bytes")
    if part.startswith(".") and not hidden:
        raise Refusal(400, f"the name {show(part)} begins with a dot")
    if part.endswith((".", " ")) or DEVICES.match(part):
        raise Refusal(400, f"{show(part)} is not a valid file name on some systems")
