"""Lists the usable entries of a folder, and skips bad ones. Must not know the contents of files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from katz_graph.core.messages import show

Skipped = Callable[[str], None]
"""Receives a line about a skipped entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder, or a link to one."""

    name: str
    path: Path
    is_folder: bool
    is_file: bool


def entries_of(folder: Path, skipped: Skipped) -> tuple[Entry, ...]:
    """Lists a folder sorted by name. Skips entries that cannot be read, such as a link to itself,
    and names that are not UTF-8. OSError if the folder itself cannot be read.
    """
    found = []
    with os.scandir(folder) as listed:
        for entry in sorted(listed, key=lambda entry: entry.name):
            try:
                entry.name.encode()
                one = Entry(entry.name, Path(entry.path), entry.is_dir(), entry.is_file())
            except UnicodeEncodeError:
                skipped(f"{show(str(folder))}: skipped a name that is not UTF-8")
            except OSError as error:
                skipped(f"{show(entry.path)} is not listed: {error.strerror or error}")
            else:
                found.append(one)
    return tuple(found)
