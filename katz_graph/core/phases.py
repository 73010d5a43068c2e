"""Records how long each phase of a start takes, in several processes of one host."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

STAT = Path("/proc/self/stat")
START_TIME = 19  # field of STAT after the command's name: ticks from boot to this process's start


@dataclass(frozen=True, slots=True)
class Phase:
    """Holds one phase of a process. Times are seconds of `time.monotonic`, which all processes of a
    host share.
    """

    process: str
    name: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Phases:
    """Collects the phases of one process. One thread calls `end`; any may call `measured`."""

    def __init__(self, process: str, since: float | None = None) -> None:
        """`since`: start of the first phase, on the clock of `time.monotonic`; by default now."""
        self.process = process
        self.done: list[Phase] = []
        self._since = time.monotonic() if since is None else since

    def end(self, name: str) -> None:
        """Ends the phase that began with the last `end`, or with this object."""
        began, self._since = self._since, time.monotonic()
        self.done.append(Phase(self.process, name, began, self._since))

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Measures a phase that runs concurrently with those of `end`."""
        began = time.monotonic()
        yield
        self.done.append(Phase(self.process, name, began, time.monotonic()))


def add(totals: dict[tuple[str, str], Phase], phase: Phase) -> None:
    """Adds a phase to the totals by process and name. A total begins with its first phase and
    lasts as long as all its phases together.
    """
    key = phase.process, phase.name
    total = totals.get(key)
    totals[key] = phase if total is None else replace(total, ended=total.ended + phase.seconds)


def process_start() -> float:
    """Returns when this process started, in seconds of `time.monotonic`; now if the system does not
    tell.
    """
    with suppress(OSError, ValueError, IndexError, AttributeError):
        ticks = int(STAT.read_text().rpartition(")")[2].split()[START_TIME])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - age
    return time.monotonic()


def covered(phases: Iterable[Phase], began: float, ended: float) -> float:
    """Returns the seconds between two times in which at least one phase ran."""
    total, until = 0.0, began
    for phase in sorted(phases, key=lambda one: one.began):
        total += max(0.0, min(phase.ended, ended) - max(phase.began, until))
        until = max(until, min(phase.ended, ended))
    return total
