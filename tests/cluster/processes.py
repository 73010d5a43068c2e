"""Lists the descendants of a process, and waits for conditions."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path


def eventually(holds: Callable[[], bool], timeout: float) -> float:
    """Waits until a condition holds; returns the seconds it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout
        time.sleep(0.005)
    return time.monotonic() - began


def runs(pid: int) -> bool:
    """Returns whether a process runs. A zombie does not run."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    return False


def below(pid: int) -> set[int]:
    """Returns all descendants of a process."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child, *below(child)}
    return found


def as_before(before: set[int]) -> None:
    """Waits until this process has no descendants except those in `before`. Ended children are
    reaped shortly afterwards.
    """
    eventually(lambda: below(os.getpid()) <= before, 5)
