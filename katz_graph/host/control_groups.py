"""Lists the control groups of this process. Must not know their limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

FILE = Path("/proc/self/cgroup")


def control_groups(file: Path = FILE) -> Iterator[tuple[frozenset[str], str]]:
    """Yields the controllers of each hierarchy (empty for version 2) and the path of its group.

    Skips malformed lines; yields nothing if the file cannot be read.
    """
    try:
        lines = file.read_text(errors="surrogateescape").split("\n")
    except OSError:
        return
    for line in lines:
        match line.split(":", 2):
            case [_, controllers, path]:
                yield frozenset(filter(None, controllers.split(","))), path.lstrip("/")
