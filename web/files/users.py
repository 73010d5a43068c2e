"""Keeps the users of a server with their settings and files. A name proves nothing: it keeps users'
things apart, not safe from each other.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from katz_graph.errors import InputError
from katz_graph.formats.strict_json import parse_json
from katz_graph.web.files.uploads import arriving
from katz_graph.web.files.user_files import UserFiles
from katz_graph.web.http.responses import Refusal

ONLY_USER = "default"
SETTINGS = "comfy.settings.json"  # the name that people's ComfyUI folders have it under, so they can bring theirs
NAMES = "users.json"
INCOMING = ".incoming"
MOST_USERS = 1_000
MOST_SETTINGS = 2**20  # bytes
LONGEST_NAME = 100


class Users:
    """Manages the folder `users` of a server's data. Changes files one after the other."""

    def __init__(self, root: Path, several: bool, most_bytes: int) -> None:
        self._root, self._several, self._most_bytes = root, several, most_bytes
        self._writing = asyncio.Lock()
        for left in (root / INCOMING).glob("*"):  # by a server that was killed
            left.unlink(missing_ok=True)

    @property
    def several(self) -> bool:
        return self._several

    def files(self, user: str | None) -> UserFiles:
        """Returns the files of the user that `Comfy-User` names. Refusal 401 for an unknown one."""
        if not self._several:
            return UserFiles(self._root / ONLY_USER, self._most_bytes)
        if user is None or user not in self.names():
            raise Refusal(401, "no such user: choose one of /users", "unknown_user")
        return UserFiles(self._root / user, self._most_bytes)

    def names(self) -> dict[str, str]:
        """Returns users' names by id."""
        return {user: name for user, name in _read(self._root / NAMES).items() if isinstance(name, str)}

    async def add(self, name: str) -> str:
        """Adds a user; returns the id. Refusal 400 when the name is taken or there are too many."""
        async with self._writing:
            names = await asyncio.to_thread(self.names)
            if name in names.values():
                raise Refusal(400, "Duplicate username.")
            if len(names) >= MOST_USERS:
                raise Refusal(400, f"there are {MOST_USERS:,} users already")
            user = f"{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-') or 'user'}_{uuid4()}"
            await asyncio.to_thread(self._write, UserFiles(self._root, self._most_bytes * MOST_USERS), NAMES, {**names, user: name})
            return user

    async def store(self, files: UserFiles, name: str, content: AsyncIterable[bytes], overwrite: bool) -> None:
        """Stores a file as it comes in. Refusal as in `UserFiles.keep`, 507 when the disk is
        full.
        """
        with arriving(self._root / INCOMING) as (arrived, temporary):
            async for piece in content:
                await asyncio.to_thread(arrived.write, piece)
            await asyncio.to_thread(arrived.flush)
            async with self._writing:
                await asyncio.to_thread(files.keep, temporary, name, overwrite)

    async def delete(self, files: UserFiles, name: str) -> None:
        async with self._writing:
            await asyncio.to_thread(files.delete, name)

    async def move(self, files: UserFiles, name: str, to: str, overwrite: bool) -> None:
        async with self._writing:
            await asyncio.to_thread(files.move, name, to, overwrite)

    async def settings(self, files: UserFiles) -> dict[str, Any]:
        """Returns all settings of a user. A damaged file is set aside under another name."""
        return await asyncio.to_thread(_read, files.root / SETTINGS)

    async def set(self, files: UserFiles, values: Mapping[str, Any]) -> None:
        """Sets these settings and leaves the others. Refusal 413 when they become too large."""
        async with self._writing:
            settings = {**await self.settings(files), **values}
            await asyncio.to_thread(self._write, files, SETTINGS, settings)

    def _write(self, files: UserFiles, name: str, data: Mapping[str, Any]) -> None:
        text = json.dumps(data, ensure_ascii=False, indent=1).encode()
        if len(text) > MOST_SETTINGS:
            raise Refusal(413, f"settings may have {MOST_SETTINGS:,} bytes", "too_large")
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
    with suppress(OSError):
        path.replace(path.with_name(f"{path.name}.damaged-{time.time_ns()}"))
    return {}
