"""Reads which control groups hold this process. Must not know what they limit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FILE = Path("/proc/self/cgroup")


def control_groups(file: Path = FILE) -> Iterator[tuple[frozenset[str], str]]:
    """Yields the controllers of each hierarchy (none: version 2's) and the path of the group in it.
    Skips lines of another form; yields nothing where the file cannot be read.
    """
    try:
        lines = file.read_text(errors="surrogateescape").split("\n")
    except OSError:
        return
    for line in lines:
        match line.split(":", 2):
            case [_, controllers, path]:
                yield frozenset(filter(None, controllers.split(","))), path.lstrip("/")
