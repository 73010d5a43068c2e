"""Keeps each user's files in a folder of their own: written whole, within a quota. Must not know
HTTP.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from katz_graph.files.output_files import take
from katz_graph.web.files.paths import file_state, inside, parts_of
from katz_graph.web.files.uploads import disk_refusals
from katz_graph.web.http.responses import Refusal

MOST_FILES = 10_000
MOST_FOLDERS = 5_000


@dataclass(frozen=True, slots=True)
class UserFileEntry:
    """A file or folder, named relative to another one. Times are in seconds since the epoch."""

    name: str
    folder: bool
    size: int
    modified: float
    created: float


@dataclass(frozen=True, slots=True)
class UserFiles:
    """Keeps one user's files below `root`, at most `most_bytes` together. Names may begin with a
    dot, as editors' own lists do.
    """

    root: Path
    most_bytes: int

    def entries(self, below: str, recurse: bool) -> list[UserFileEntry] | None:
        """Lists a folder, sorted by name, names relative to it; None when there is no such
        folder.
        """
        folder = inside(self.root, below, hidden=True)
        if not folder.is_dir():
            return [] if not parts_of(below, hidden=True) else None
        return sorted(_walk(folder, recurse), key=lambda entry: entry.name)

    def entry(self, name: str) -> UserFileEntry:
        """Describes a file. Raises Refusal 404 when there is none."""
        path, state = self.file(name)
        return _entry(path.relative_to(self.root.resolve()).as_posix(), state)

    def file(self, name: str) -> tuple[Path, os.stat_result]:
        """Returns a file's path and state. Raises Refusal 404 when there is none."""
        path = self._path(name)
        state = file_state(path)
        if state is None:
            raise Refusal(404, "there is no such file")
        return path, state

    def keep(self, temporary: Path, name: str, overwrite: bool) -> None:
        """Gives a whole file on the same disk its name. Raises Refusal 409 when the name is taken
        and not to be overwritten, 413 over the quota.
        """
        path = self._path(name)
        replaced = file_state(path)
        if replaced is not None and not overwrite:
            raise Refusal(409, "there is a file of this name")
        self._check_quota(temporary.stat().st_size - (replaced.st_size if replaced else 0), int(replaced is None))
        with disk_refusals():
            path.parent.mkdir(parents=True, exist_ok=True)
            if overwrite:
                temporary.replace(path)
            elif not take(temporary, path):
                raise Refusal(409, "there is a file of this name")

    def delete(self, name: str) -> None:
        """Deletes a file. Raises Refusal 404 when there is none."""
        path, _ = self.file(name)
        with disk_refusals():
            path.unlink(missing_ok=True)
        self._prune(path.parent)

    def move(self, name: str, to: str, overwrite: bool) -> None:
        """Renames a file. Raises Refusal 404 when there is none, 409 when the new name is taken and
        not to be overwritten.
        """
        source, _ = self.file(name)
        target = self._path(to)
        self._check_quota(0, 0)
        with disk_refusals():
            target.parent.mkdir(parents=True, exist_ok=True)
            if overwrite or source == target:
                source.replace(target)
            elif take(source, target):
                source.unlink(missing_ok=True)
            else:
                raise Refusal(409, "there is a file of this name")
        self._prune(source.parent)

    def _prune(self, folder: Path) -> None:
        """Deletes folders that became empty, as nobody could delete them."""
        with suppress(OSError):
            while folder != self.root.resolve():
                folder.rmdir()
                folder = folder.parent

    def _path(self, name: str) -> Path:
        if not parts_of(name, hidden=True):
            raise Refusal(400, "the name of the file is empty")
        return inside(self.root, name, hidden=True)

    def _check_quota(self, more_bytes: int, more_files: int) -> None:
        files = folders = taken = 0
        for entry in _walk(self.root, recurse=True):
            files, folders, taken = files + (not entry.folder), folders + entry.folder, taken + entry.size
        if taken + more_bytes > self.most_bytes:
            raise Refusal(413, f"your files may have {self.most_bytes:,} bytes together; delete some first", "too_large")
        if files + more_files > MOST_FILES or folders > MOST_FOLDERS:
            raise Refusal(413, f"you may keep {MOST_FILES:,} files in {MOST_FOLDERS:,} folders; delete some first", "too_large")


def _walk(folder: Path, recurse: bool) -> Iterator[UserFileEntry]:
    """Lists ordinary files and folders below; leaves out links, as they may lead anywhere."""
    pending = [folder]
    while pending:
        current = pending.pop()
        try:
            found = list(os.scandir(current))
        except OSError:  # gone since it was seen
            continue
        for item in found:
            name = Path(item.path).relative_to(folder).as_posix()
            try:
                state = item.stat(follow_symlinks=False)
            except OSError:
                continue
            if item.is_dir(follow_symlinks=False):
                yield UserFileEntry(name, True, 0, state.st_mtime, state.st_ctime)
                if recurse:
                    pending.append(Path(item.path))
            elif item.is_file(follow_symlinks=False):
                yield _entry(name, state)


def _entry(name: str, state: os.stat_result) -> UserFileEntry:
    return UserFileEntry(name, False, state.st_size, state.st_mtime, state.st_ctime)
