"""Reads what the kernel's scheduler has given the threads of this process: how long they computed,
and how long they could have and had to wait for a processor; and what other processes computed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
THREADS = PROC / "self" / "task"
IDLE = slice(3, 5)  # of the columns of /proc/stat: idle, and waiting for a disk
VIRTUAL = 8  # the first column whose time an earlier one counts as well
USER, SYSTEM = 11, 12  # columns of /proc/PID/stat after the command


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Holds seconds, summed over the threads that there are; zeros where the kernel does not tell
    any. `neighbours`: what processes computed that compete on purpose, `others`: all others.
    """

    computed: float = 0.0
    waited: float = 0.0
    neighbours: float = 0.0
    others: float = 0.0

    def __sub__(self, earlier: Scheduled) -> Scheduled:
        return Scheduled(
            self.computed - earlier.computed,
            self.waited - earlier.waited,
            self.neighbours - earlier.neighbours,
            self.others - earlier.others,
        )

    @property
    def share_waited(self) -> float:
        """Returns which part of the time in which they could compute they waited."""
        return self._share(self.waited)

    @property
    def share_disturbed(self) -> float:
        """Returns which part of that time they may have waited for others than neighbours: for as
        long as others computed, and where that is not known, for longer than neighbours computed.
        """
        unexplained = self.waited - max(0.0, self.neighbours)
        return self._share(max(unexplained, min(self.waited, self.others)))

    def _share(self, waited: float) -> float:
        whole = self.computed + self.waited
        return max(0.0, waited) / whole if whole > 0 else 0.0


def scheduled() -> Scheduled:
    """Returns what the threads of this process were given since each began."""
    computed = waited = 0
    for thread in THREADS.iterdir() if THREADS.is_dir() else ():
        with suppress(OSError, IndexError, ValueError):
            ran, delayed, *_ = map(int, (thread / "schedstat").read_text().split())
            computed, waited = computed + ran, waited + delayed
    return Scheduled(computed / 1e9, waited / 1e9)


def scheduled_beside(parent: int) -> Scheduled:
    """Returns the same, with what was computed by `parent` and the processes below it, which are
    this one's neighbours, and by all others of the machine.
    """
    own = scheduled()
    family = {pid: _computed(pid) for pid in (parent, *_below(parent))}
    neighbours = sum(seconds for pid, seconds in family.items() if pid != os.getpid())
    others = _machine_computed() - neighbours - _computed(os.getpid())
    return Scheduled(own.computed, own.waited, neighbours, others)


def _machine_computed() -> float:
    """Returns what all processors computed since the machine was started."""
    with suppress(OSError, ValueError, IndexError):
        ticks = [int(one) for one in (PROC / "stat").read_text().splitlines()[0].split()[1:]]
        return (sum(ticks[:VIRTUAL]) - sum(ticks[IDLE])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _computed(pid: int) -> float:
    """Returns what a process computed; 0 where it has ended."""
    with suppress(OSError, ValueError, IndexError):
        columns = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(columns[USER]) + int(columns[SYSTEM])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _below(pid: int) -> Iterator[int]:
    """Yields the processes that one has started, and those that they have."""
    with suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _below(child)
