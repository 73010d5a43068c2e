"""Tells what the kernel's scheduler has given the threads of this process: how long they computed,
and how long they could have and had to wait for a processor.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

THREADS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Holds seconds, summed over the threads that there are; zeros where the kernel does not tell
    any.
    """

    computed: float = 0.0
    waited: float = 0.0

    def __sub__(self, earlier: Scheduled) -> Scheduled:
        return Scheduled(self.computed - earlier.computed, self.waited - earlier.waited)

    @property
    def share_waited(self) -> float:
        """Returns which part of the time in which they could compute they waited."""
        whole = self.computed + self.waited
        return max(0.0, self.waited) / whole if whole > 0 else 0.0


def scheduled() -> Scheduled:
    """Returns what the threads of this process were given since each began."""
    computed = waited = 0
    for thread in THREADS.iterdir() if THREADS.is_dir() else ():
        with suppress(OSError, IndexError, ValueError):
            ran, delayed, *_ = map(int, (thread / "schedstat").read_text().split())
            computed, waited = computed + ran, waited + delayed
    return Scheduled(computed / 1e9, waited / 1e9)
