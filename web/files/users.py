"""Stores each user's settings and files in a separate folder, within a quota. Names are not
authenticated: they separate users' files but do not protect them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from katz_graph.core.errors import InputError
from katz_graph.files.output_files import take
from katz_graph.formats.strict_json import parse_json
from katz_graph.web.files.paths import file_state, inside, parts_of
from katz_graph.web.files.uploads import arriving, disk_refusals
from katz_graph.web.http.responses import Refusal

ONLY_USER = "default"
# same name as in ComfyUI, so that users can copy their files
SETTINGS = "comfy.settings.json"
NAMES = "users.json"
INCOMING = ".incoming"
MAX_USERS = 1_000
MAX_SETTINGS = 2**20  # bytes
LONGEST_NAME = 100
MAX_FILES = 10_000
MAX_FOLDERS = 5_000
log = logging.getLogger("katz.web")


Check = Callable[[os.stat_result | None], None]
"""Raises Refusal if a file in this state may not be replaced; None: the file does not exist."""


def anything(state: os.stat_result | None) -> None:
    """Allows every replacement."""


class Users:
    """Manages the folder `users` of a server's data. Serializes changes to files."""

    def __init__(self, root: Path, several: bool, max_bytes: int) -> None:
        self._root, self._several, self._max_bytes = root, several, max_bytes
        self._writing = asyncio.Lock()
        self._last_ns = 0
        for left in (root / INCOMING).glob("*"):  # left by a killed server
            left.unlink(missing_ok=True)

    @property
    def several(self) -> bool:
        return self._several

    def files(self, user: str | None) -> UserFiles:
        """Returns the files of the user named by `Comfy-User`. Raises Refusal 401 if unknown."""
        if not self._several:
            return UserFiles(self._root / ONLY_USER, self._max_bytes)
        if user is None or user not in self.names():
            raise Refusal(401, "no such user: choose one of /users", "unknown_user")
        return UserFiles(self._root / user, self._max_bytes)

    def names(self) -> dict[str, str]:
        return {
            user: name for user, name in _read(self._root / NAMES).items() if isinstance(name, str)
        }

    async def add(self, name: str) -> str:
        """Adds a user; returns the id. Raises Refusal 400 for a taken name or too many users."""
        async with self._writing:
            names = await asyncio.to_thread(self.names)
            if name in names.values():
                raise Refusal(400, "Duplicate username.")
            if len(names) >= MAX_USERS:
                raise Refusal(400, f"the server has reached its limit of {MAX_USERS:,} users")
            user = f"{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-') or 'user'}_{uuid4()}"
            await asyncio.to_thread(
                self._write,
                UserFiles(self._root, self._max_bytes * MAX_USERS),
                NAMES,
                {**names, user: name},
            )
            return user

    async def store(
        self,
        files: UserFiles,
        name: str,
        content: AsyncIterable[bytes],
        overwrite: bool,
        check: Check = anything,
        announced: int = 0,
    ) -> UserFile:
        """Stores a file as it arrives. `check` may refuse to replace a file in its current state.
        Returns the file as this call stored it, even if it has changed since. Raises Refusal like
        `UserFiles.keep`, and 507 if the disk is full.

        `announced`: the expected bytes, or 0 if unknown.
        """
        room, taken = await asyncio.to_thread(files.room, name), 0
        check_quota(announced, room, files.max_bytes)
        with arriving(self._root / INCOMING) as (arrived, temporary):
            async for piece in content:
                taken += len(piece)
                check_quota(taken, room, files.max_bytes)
                await asyncio.to_thread(arrived.write, piece)
            await asyncio.to_thread(arrived.flush)
            async with self._writing:
                check(await asyncio.to_thread(files.state, name))
                await asyncio.to_thread(self._stamp, temporary)
                return await asyncio.to_thread(files.keep, temporary, name, overwrite)

    async def delete(self, files: UserFiles, name: str, check: Check = anything) -> None:
        async with self._writing:
            check(await asyncio.to_thread(files.state, name))
            await asyncio.to_thread(files.delete, name)

    async def move(
        self, files: UserFiles, name: str, to: str, overwrite: bool, check: Check = anything
    ) -> UserFile:
        """Renames a file. `check` may refuse to replace the file of the new name. Returns the file
        as this call left it.
        """
        async with self._writing:
            check(await asyncio.to_thread(files.state, to))
            return await asyncio.to_thread(files.move, name, to, overwrite)

    def _stamp(self, path: Path) -> None:
        """Gives a file a unique mtime, because a file that is replaced twice within one tick of a
        file system's clock (milliseconds) may reuse an earlier version's inode.
        """
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        os.utime(path, ns=(self._last_ns, self._last_ns))

    async def settings(self, files: UserFiles) -> dict[str, Any]:
        """Returns all settings of a user. Renames a damaged settings file."""
        return await asyncio.to_thread(_read, files.root / SETTINGS)

    async def set(self, files: UserFiles, values: Mapping[str, Any]) -> None:
        """Updates these settings. Raises Refusal 413 if the settings become too large."""
        async with self._writing:
            settings = {**await self.settings(files), **values}
            await asyncio.to_thread(self._write, files, SETTINGS, settings)

    def _write(self, files: UserFiles, name: str, data: Mapping[str, Any]) -> None:
        text = json.dumps(data, ensure_ascii=False, indent=1).encode()
        if len(text) > MAX_SETTINGS:
            raise Refusal(413, f"settings may not exceed {MAX_SETTINGS:,} bytes", "too_large")
        with arriving(self._root / INCOMING) as (arrived, temporary):
            arrived.write(text)
            arrived.flush()
            files.keep(temporary, name, overwrite=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        data = parse_json(path.read_text("utf-8"))
        if isinstance(data, dict):
            return data
    except FileNotFoundError:
        return {}
    except (InputError, UnicodeDecodeError):
        pass
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    with suppress(OSError):
        path.replace(aside)
    log.warning("%s is damaged and treated as empty; it was renamed to %s", path, aside.name)
    return {}


@dataclass(frozen=True, slots=True)
class UserFileEntry:
    """Describes a file or folder, named relative to another one. Times are in seconds since the
    epoch.
    """

    name: str
    folder: bool
    size: int
    modified: float
    created: float


@dataclass(frozen=True, slots=True)
class UserFile:
    """Holds a file and its state as it was stored."""

    entry: UserFileEntry
    state: os.stat_result


@dataclass(frozen=True, slots=True)
class UserFiles:
    """Stores one user's files below `root`, up to `max_bytes`. Names may begin with a dot, because
    editors store such files.
    """

    root: Path
    max_bytes: int

    def entries(self, below: str, recurse: bool) -> list[UserFileEntry] | None:
        """Lists a folder sorted by name, with names relative to it; None if it does not exist."""
        folder = inside(self.root, below, hidden=True)
        if not folder.is_dir():
            return [] if not parts_of(below, hidden=True) else None
        return sorted(_walk(folder, recurse), key=lambda entry: entry.name)

    def file(self, name: str) -> Path:
        """Returns a file's path. Raises Refusal 404 if the file does not exist."""
        path = self._path(name)
        if file_state(path) is None:
            raise Refusal(404, "file not found")
        return path

    def state(self, name: str) -> os.stat_result | None:
        """Returns a file's state, or None if it does not exist."""
        return file_state(self._path(name))

    def keep(self, temporary: Path, name: str, overwrite: bool) -> UserFile:
        """Renames a complete file on the same disk to its name; returns it. Raises Refusal 409 if
        the name is taken and `overwrite` is not set, and 413 over the quota.
        """
        path = self._path(name)
        replaced = file_state(path)
        if replaced is not None and not overwrite:
            raise Refusal(409, "a file of this name exists")
        self._check_quota(
            temporary.stat().st_size - (replaced.st_size if replaced else 0), int(replaced is None)
        )
        with disk_refusals():
            path.parent.mkdir(parents=True, exist_ok=True)
            if overwrite:
                temporary.replace(path)
            elif not take(temporary, path):
                raise Refusal(409, "a file of this name exists")
            return self._stored(path)

    def _stored(self, path: Path) -> UserFile:
        state = path.lstat()
        return UserFile(_entry(path.relative_to(self.root.resolve()).as_posix(), state), state)

    def delete(self, name: str) -> None:
        """Deletes a file. Raises Refusal 404 if it does not exist."""
        path = self.file(name)
        with disk_refusals():
            path.unlink(missing_ok=True)
        self._prune(path.parent)

    def move(self, name: str, to: str, overwrite: bool) -> UserFile:
        """Renames a file; returns it. Raises Refusal 404 if it does not exist, and 409 if the new
        name is taken and `overwrite` is not set.
        """
        source = self.file(name)
        target = self._path(to)
        self._check_quota(0, 0)
        with disk_refusals():
            target.parent.mkdir(parents=True, exist_ok=True)
            if overwrite or source == target:
                source.replace(target)
            elif take(source, target):
                source.unlink(missing_ok=True)
            else:
                raise Refusal(409, "a file of this name exists")
            moved = self._stored(target)
        self._prune(source.parent)
        return moved

    def _prune(self, folder: Path) -> None:
        """Deletes empty folders, which users cannot delete."""
        with suppress(OSError):
            while folder != self.root.resolve():
                folder.rmdir()
                folder = folder.parent

    def _path(self, name: str) -> Path:
        if not parts_of(name, hidden=True):
            raise Refusal(400, "the name of the file is empty")
        return inside(self.root, name, hidden=True)

    def room(self, name: str) -> int:
        """Returns the bytes that a file of this name may have. Raises Refusal 413 if the user has
        too many files.
        """
        replaced = self.state(name)
        taken = self._taken(int(replaced is None))
        return self.max_bytes - taken + (replaced.st_size if replaced else 0)

    def _check_quota(self, more_bytes: int, more_files: int) -> None:
        check_quota(self._taken(more_files) + more_bytes, self.max_bytes, self.max_bytes)

    def _taken(self, more_files: int) -> int:
        """Returns the bytes of all files. Raises Refusal 413 if `more_files` further files would
        exceed the limit.
        """
        files = folders = taken = 0
        for entry in _walk(self.root, recurse=True):
            files = files + (not entry.folder)
            folders = folders + entry.folder
            taken = taken + entry.size
        if files + more_files > MAX_FILES or folders > MAX_FOLDERS:
            raise Refusal(
                413,
                f"you may store at most {MAX_FILES:,} files in {MAX_FOLDERS:,} folders; delete "
                f"some first",
                "too_large",
            )
        return taken


def check_quota(size: int, room: int, max_bytes: int) -> None:
    """Raises Refusal 413 if a size exceeds the available room."""
    if size > room:
        raise Refusal(
            413,
            f"your files together may not exceed {max_bytes:,} bytes; delete some first",
            "too_large",
        )


def _walk(folder: Path, recurse: bool) -> Iterator[UserFileEntry]:
    """Yields regular files and folders below a folder. Skips links: they may lead anywhere."""
    above = os.path.join(folder, "")  # noqa: PTH118 (strings are faster for ten thousand paths)
    pending = [str(folder)]
    while pending:
        current = pending.pop()
        try:
            found = list(os.scandir(current))
        except OSError:  # deleted since it was listed
            continue
        for item in found:
            name = item.path[len(above) :]
            try:
                state = item.stat(follow_symlinks=False)
            except OSError:
                continue
            if item.is_dir(follow_symlinks=False):
                yield UserFileEntry(name, True, 0, state.st_mtime, state.st_ctime)
                if recurse:
                    pending.append(item.path)
            elif item.is_file(follow_symlinks=False):
                yield _entry(name, state)


def _entry(name: str, state: os.stat_result) -> UserFileEntry:
    return UserFileEntry(name, False, state.st_size, state.st_mtime, state.st_ctime)
