"""Lists users' files in pages, newest first. Must not know routes and jobs."""

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
    """Holds a file by its name relative to the folder."""

    age: int  # negative nanoseconds since the epoch
    name: str
    bytes: int

    @property
    def modified(self) -> float:
        """The time of the last change in seconds since the epoch."""
        return -self.age / 1e9

    @property
    def cursor(self) -> str:
        """The cursor of the page that follows this entry."""
        return f"{-self.age} {self.name}"


Found = tuple[int, str, int]
"""The fields of an entry, as a tuple because tens of thousands are stored and compared."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """Holds a folder's listing taken at `taken`, in seconds since the epoch: its files by name,
    with their inodes, and its subfolders.
    """

    changed_ns: int
    taken: float
    files: Mapping[str, tuple[int, Found]]
    folders: tuple[str, ...]


class FolderIndex:
    """Indexes the files below a folder, newest first. Rescans only changed folders, and reads only
    the state of new and replaced files. A file that changes in place is read again when a page
    shows it.

    `without`: a subfolder to skip; links and hidden files are skipped, too. Thread-safe.
    """

    def __init__(self, root: Path, without: str = "") -> None:
        self._root, self._without = root, without
        self._folders: dict[str, _Listed] = {}
        self._files: list[Found] = []
        self._top: tuple[str, ...] | None = None
        self._lock = threading.Lock()

    def newest(self, count: int, after: str = "") -> list[Entry]:
        """Returns up to `count` files after the cursor `after`. Raises Refusal 400 for an invalid
        cursor.
        """
        match = CURSOR.fullmatch(after)
        if after and match is None:
            raise Refusal(400, "'after' is not the 'next' of an earlier page")
        with self._lock:
            self._renew()
            page = self._page(match, count)
            if stale := [found[1] for found in page if _has_changed(self._root, found)]:
                self._forget(stale)
                self._renew()
                page = self._page(match, count)
        return [Entry(*found) for found in page]

    def top(self) -> tuple[str, ...]:
        """Returns the names of all files directly in the folder, except unprintable ones."""
        with self._lock:
            self._renew()
            if self._top is None:
                names = (name for _, name, _ in self._files)
                self._top = tuple(name for name in names if "/" not in name and name.isprintable())
            return self._top

    def _forget(self, names: Iterable[str]) -> None:
        """Marks files to be read again."""
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
    """Reads width and height from a picture's header; returns None for other files."""
    try:
        with Image.open(path, formats=READ) as picture:
            return picture.size
    except Exception:  # Pillow raises many kinds of errors for damaged files
        return None


def _listed(root: Path, name: str, before: _Listed | None) -> _Listed | None:
    """Scans a folder unless it is unchanged; returns None if it cannot be read."""
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
    """Returns whether any later change of the folder will change its mtime."""
    return listed.taken - listed.changed_ns / 1e9 > SETTLED


def _has_changed(root: Path, found: Found) -> bool:
    """Returns whether a file differs from its listed state."""
    age, name, size = found
    state = file_state(root / name)
    return state is not None and (-state.st_mtime_ns, state.st_size) != (age, size)


def _nameable(found: Found) -> bool:
    """Returns whether clients can name a file: no part is hidden, and it is not too deep."""
    with suppress(Refusal):
        return bool(parts_of(found[1]))
    return False
