"""Lists files of people's folders in pages, the newest first. Must not know routes and jobs."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from PIL import Image

from katz_graph.files.folders import SETTLED
from katz_graph.web.files.paths import file_state, parts_of
from katz_graph.web.files.pictures import READ
from katz_graph.web.http.responses import Refusal

CURSOR = re.compile(r"([0-9]{1,20}) (.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file by its name relative to the folder."""

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


Found = tuple[int, str, int]
"""The fields of an entry: tuples are compared and kept by the ten thousand."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """A folder as it was listed at `taken`, in seconds since the epoch: its files with their
    inodes by name, and its folders.
    """

    changed_ns: int
    taken: float
    files: Mapping[str, tuple[int, Found]]
    folders: tuple[str, ...]


class FolderIndex:
    """Keeps the files below a folder, the newest first. A folder is listed again when it has
    changed, and then only new and replaced files are looked at; a file that is written in place is
    looked at again when a page shows it.

    `without`: a subfolder that is left out, as are links and hidden files. Any thread may ask.
    """

    def __init__(self, root: Path, without: str = "") -> None:
        self._root, self._without = root, without
        self._folders: dict[str, _Listed] = {}
        self._files: list[Found] = []
        self._top: tuple[str, ...] | None = None
        self._lock = threading.Lock()

    def newest(self, count: int, after: str = "") -> list[Entry]:
        """Lists at most `count` files, those behind the cursor `after`. Raises Refusal 400 for what
        is no cursor.
        """
        match = CURSOR.fullmatch(after)
        if after and match is None:
            raise Refusal(400, "'after' is not the 'next' of a page")
        with self._lock:
            self._renew()
            page = self._page(match, count)
            if stale := [found[1] for found in page if _has_changed(self._root, found)]:
                self._forget(stale)
                self._renew()
                page = self._page(match, count)
        return [Entry(*found) for found in page]

    def top(self) -> tuple[str, ...]:
        """Lists the names of all files that lie in the folder itself if they can be printed."""
        with self._lock:
            self._renew()
            if self._top is None:
                names = (name for _, name, _ in self._files)
                self._top = tuple(name for name in names if "/" not in name and name.isprintable())
            return self._top

    def _forget(self, names: Iterable[str]) -> None:
        """Has files looked at again."""
        for folder, _, name in (name.rpartition("/") for name in names):
            listed = self._folders[folder]
            files = {one: found for one, found in listed.files.items() if one != name}
            self._folders[folder] = replace(listed, changed_ns=-1, files=files)

    def _page(self, match: re.Match[str] | None, count: int) -> list[Found]:
        first = bisect_right(self._files, (-int(match[1]), match[2], sys.maxsize)) if match else 0
        return list(islice(filter(_nameable, islice(self._files, first, None)), count))

    def _renew(self) -> None:
        pending, current, changed = [""], dict[str, _Listed](), False
        while pending:
            name = pending.pop()
            before = self._folders.get(name)
            now = _listed(self._root, name, before)
            changed = changed or now is not before
            if now is None:
                continue
            current[name] = now
            below = (f"{name}/{folder}" if name else folder for folder in now.folders)
            pending += [folder for folder in below if folder != self._without]
        if changed or current.keys() != self._folders.keys():
            self._top = None
            self._files = sorted(
                found for folder in current.values() for _, found in folder.files.values()
            )
        self._folders = current


def pixels(path: Path) -> tuple[int, int] | None:
    """Reads width and height from a picture's header; None for what is no picture."""
    try:
        with Image.open(path, formats=READ) as picture:
            return picture.size
    except Exception:  # Pillow's readers raise many kinds for damaged files
        return None


def _listed(root: Path, name: str, before: _Listed | None) -> _Listed | None:
    """Lists a folder unless it is as it was before; None when it cannot be read."""
    folder = root / name
    try:
        changed_ns, taken = folder.lstat().st_mtime_ns, time.time()
        if before is not None and before.changed_ns == changed_ns and _settled(before):
            return before
        known = {} if before is None else before.files
        files: dict[str, tuple[int, Found]] = {}
        folders = []
        with os.scandir(folder) as entries:
            for entry in entries:
                same = known.get(entry.name)
                if same is not None and same[0] == entry.inode():
                    files[entry.name] = same
                elif entry.name.startswith(".") or entry.is_symlink():
                    continue
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif (state := file_state(Path(entry.path))) is not None:
                    inside = f"{name}/{entry.name}" if name else entry.name
                    found = -state.st_mtime_ns, inside, state.st_size
                    files[entry.name] = entry.inode(), found
    except OSError:
        return None
    return _Listed(changed_ns, taken, files, tuple(folders))


def _settled(listed: _Listed) -> bool:
    """Tells whether a later change surely shows in the folder's time of change."""
    return listed.taken - listed.changed_ns / 1e9 > SETTLED


def _has_changed(root: Path, found: Found) -> bool:
    """Tells whether a file is another one than it was when it was listed."""
    age, name, size = found
    state = file_state(root / name)
    return state is not None and (-state.st_mtime_ns, state.st_size) != (age, size)


def _nameable(found: Found) -> bool:
    """Checks whether clients can name the file at all: nothing hidden, nothing too deep."""
    with suppress(Refusal):
        return bool(parts_of(found[1]))
    return False
