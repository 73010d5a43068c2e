"""Lists files of people's folders in pages, the newest first. Must not know routes and jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from PIL import Image

from katz_graph.web.files.paths import file_state, parts_of
from katz_graph.web.files.pictures import READ
from katz_graph.web.http.responses import Refusal

CURSOR = re.compile(r"([0-9]{1,20}) (.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """A file by its name relative to the folder. Orders newest first."""

    age: int  # minus nanoseconds since the epoch
    name: str
    bytes: int

    @property
    def modified(self) -> float:
        """Seconds since the epoch."""
        return -self.age / 1e9

    @property
    def cursor(self) -> str:
        """Says where the next page begins."""
        return f"{-self.age} {self.name}"


def newest(folder: Path, count: int, after: str = "", without: str = "") -> list[Entry]:
    """Lists at most `count` files below a folder, those behind the cursor `after`. Leaves out
    links, hidden files, and the subfolder `without`. Raises Refusal 400 for what is no cursor.
    """
    match = CURSOR.fullmatch(after)
    if after and match is None:
        raise Refusal(400, "'after' is not the 'next' of a page")
    first = (-int(match[1]), match[2]) if match else None
    behind = sorted(
        entry
        for entry in _entries(folder, without)
        if first is None or (entry.age, entry.name) > first
    )
    return list(islice(filter(_nameable, behind), count))


def pixels(path: Path) -> tuple[int, int] | None:
    """Reads width and height from a picture's header; None for what is no picture."""
    try:
        with Image.open(path, formats=READ) as picture:
            return picture.size
    except Exception:  # Pillow's readers raise many kinds for damaged files
        return None


def _entries(root: Path, without: str) -> Iterator[Entry]:
    for folder, inside, names in os.walk(root):
        below = Path(folder).relative_to(root)
        inside[:] = [name for name in inside if (below / name).as_posix() != without]
        for name in names:
            if (state := file_state(Path(folder, name))) is not None:
                yield Entry(-state.st_mtime_ns, (below / name).as_posix(), state.st_size)


def _nameable(entry: Entry) -> bool:
    """Checks whether clients can name the file at all: nothing hidden, nothing too deep."""
    with suppress(Refusal):
        return bool(parts_of(entry.name))
    return False
