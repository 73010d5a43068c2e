"""Reads scheduler statistics of this process's threads (time on a CPU, time waiting for one), and
the CPU time of other processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
THREADS = PROC / "self" / "task"
IDLE = slice(3, 5)  # columns of /proc/stat: idle, and waiting for I/O
VIRTUAL = 8  # first column (guest time) that earlier columns already include
USER, SYSTEM = 11, 12  # columns of /proc/PID/stat after the command


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Holds seconds summed over the living threads; zeros if the kernel reports none. `neighbours`:
    CPU time of intentionally competing processes; `others`: of all others.
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
        """Returns the fraction of runnable time spent waiting for a CPU."""
        return self._share(self.waited)

    @property
    def share_disturbed(self) -> float:
        """Returns an upper bound on the fraction of runnable time lost to processes other than
        neighbours: the larger of the others' CPU time, if known, and the wait beyond the
        neighbours' CPU time.
        """
        unexplained = self.waited - max(0.0, self.neighbours)
        return self._share(max(unexplained, min(self.waited, self.others)))

    def _share(self, waited: float) -> float:
        whole = self.computed + self.waited
        return max(0.0, waited) / whole if whole > 0 else 0.0


def scheduled() -> Scheduled:
    """Returns the statistics of this process's threads since each started."""
    computed = waited = 0
    for thread in THREADS.iterdir() if THREADS.is_dir() else ():
        with suppress(OSError, IndexError, ValueError):
            ran, delayed, *_ = map(int, (thread / "schedstat").read_text().split())
            computed, waited = computed + ran, waited + delayed
    return Scheduled(computed / 1e9, waited / 1e9)


def scheduled_with_neighbours(parent: int) -> Scheduled:
    """Returns `scheduled()` with the CPU time of neighbours (`parent` and its other descendants)
    and of all other processes.
    """
    own = scheduled()
    family = {pid: _computed(pid) for pid in (parent, *_below(parent))}
    neighbours = sum(seconds for pid, seconds in family.items() if pid != os.getpid())
    others = _machine_computed() - neighbours - _computed(os.getpid())
    return Scheduled(own.computed, own.waited, neighbours, others)


def _machine_computed() -> float:
    """Returns the CPU seconds of all cores since boot."""
    with suppress(OSError, ValueError, IndexError):
        ticks = [int(one) for one in (PROC / "stat").read_text().splitlines()[0].split()[1:]]
        return (sum(ticks[:VIRTUAL]) - sum(ticks[IDLE])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _computed(pid: int) -> float:
    """Returns the CPU seconds of a process; 0 if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        columns = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(columns[USER]) + int(columns[SYSTEM])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _below(pid: int) -> Iterator[int]:
    """Yields the ids of all descendants of a process."""
    with suppress(OSError):
        for thread in (PROC / str(pid) / "task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                yield child
                yield from _below(child)
