"""Writes numbered output files `<prefix>_<number>_<ending>`. A file gets its final name only when
it is complete. Must not know the contents.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import IO
from uuid import uuid4

from katz_graph.core.errors import DiskFull, InputError, RunError

FULL = (errno.ENOSPC, errno.EDQUOT)  # error numbers of a full disk or quota
UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.tmp")  # names of incomplete files


def unfinished(folder: Path) -> Path:
    """Returns a unique hidden name in a folder for an incomplete file."""
    return folder / f".{uuid4().hex}.tmp"


def filled_prefix(prefix: str, width: int, height: int, number: int) -> str:
    """Replaces %year%, %month%, %day%, %hour%, %minute%, %second%, %width%, %height% and
    %batch_num% by their current values.
    """
    now = datetime.now()
    values = {
        "year": f"{now.year}",
        "month": f"{now.month:02}",
        "day": f"{now.day:02}",
        "hour": f"{now.hour:02}",
        "minute": f"{now.minute:02}",
        "second": f"{now.second:02}",
        "width": str(width),
        "height": str(height),
        "batch_num": str(number),
    }
    for name, value in values.items():
        prefix = prefix.replace(f"%{name}%", value)
    return prefix


def write_numbered(
    directory: Path, prefix: str, ending: str, write: Callable[[IO[bytes]], object]
) -> Path:
    """Calls `write` on a new file below `directory`, with the next free number in its folder. The
    prefix may contain a subfolder.

    InputError if the prefix leaves `directory` or names a hidden file or folder. DiskFull or
    RunError if the file cannot be written.
    """
    folder, stem = _target(directory, prefix)
    temporary = unfinished(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                write(file)
            return _claim(folder, stem, ending, temporary)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        kind = DiskFull if error.errno in FULL else RunError
        raise kind(f"{folder}: cannot write the file ({error.strerror or error})") from None


def _target(directory: Path, prefix: str) -> tuple[Path, str]:
    if "\0" in prefix:
        raise InputError("filename_prefix contains a NUL character")
    target = (directory / prefix).resolve()
    if not target.is_relative_to(directory.resolve()) or target == directory.resolve():
        raise InputError(f"filename_prefix {prefix!r} points outside of the output folder")
    if any(part.startswith(".") for part in target.relative_to(directory.resolve()).parts):
        raise InputError(
            f"filename_prefix {prefix!r} names a hidden file or folder; remove the leading dot"
        )
    return target.parent, target.name


def _claim(folder: Path, stem: str, ending: str, temporary: Path) -> Path:
    """Renames the complete file to the first free number."""
    pattern = re.compile(re.escape(stem) + r"_(\d+)_" + re.escape(ending))
    taken = (pattern.fullmatch(entry.name) for entry in folder.iterdir())
    number = max((int(match[1]) for match in taken if match), default=0) + 1
    while not take(temporary, path := folder / f"{stem}_{number:05}_{ending}"):
        number += 1
    return path


def take(temporary: Path, path: Path) -> bool:
    """Renames a complete file, unless the name is taken; returns whether it did. A hard link fails
    if the name exists, so no two files get the same name.
    """
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    # a file system without hard links: reserve the name first, then replace it with the file
    except OSError:
        with suppress(FileExistsError):
            path.touch(exist_ok=False)
            temporary.replace(path)
            return True
        return False
