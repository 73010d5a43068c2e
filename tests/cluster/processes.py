"""Which processes run below another one, and waiting for something to hold."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path


def eventually(holds: Callable[[], bool], timeout: float) -> float:
    """Seconds until it holds."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < timeout
        time.sleep(0.005)
    return time.monotonic() - began


def runs(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected by its parent does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    return False


def below(pid: int) -> set[int]:
    """All descendants of a process."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found |= {child, *below(child)}
    return found


def as_before(before: set[int]) -> None:
    """No more processes are below this one than `before`; who forked them collects them soon after
    they ended.
    """
    eventually(lambda: below(os.getpid()) <= before, 5)
