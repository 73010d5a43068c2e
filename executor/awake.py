"""Keeps the processor of a thread that waits busy for a while, unless other programs want it: one that was idle is slower at first."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

TAKEN = 1e-3  # seconds that a thread had to do without its processor; fewer are an interrupt's
WINDOW, MUCH = 0.05, 0.01  # seconds, and how many of them had to be done without where others compute; a machine's own services take fewer
RESPITE = 0.5  # seconds for which it is left to them then


give_way: Callable[[], object] = ctypes.CDLL(None).sched_yield if hasattr(os, "sched_yield") else lambda: time.sleep(0)
"""Lets other threads run, without the interpreter's lock (which `os.sched_yield` keeps) and without an idle processor: `time.sleep(0)`
takes 50 us, in which the processor halts. After a quarter of a second of either the next stage takes 15 to 30 % longer than after work."""


class Awake:
    """How long a thread that waits keeps its processor busy: for some seconds, since one that was idle takes a while to be as fast again,
    but not where others want it. Who gives way to them gets it back milliseconds after what it waited for is there; who sleeps, at once.

    `clock` and `used` are seconds of the wall, and of all processors by this process, whose other threads may well take their turn.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.perf_counter, used: Callable[[], float] = time.process_time
    ) -> None:
        self._seconds, self._clock, self._used = seconds, clock, used
        self._resumes = self._since = self._lost = 0.0

    def begin(self) -> None:
        """A wait begins."""
        self.slept()
        self._ends = self._looked + (self._seconds if self._looked >= self._resumes else 0.0)

    def slept(self) -> None:
        """Nobody took what the thread did not want."""
        self._looked = self._clock()
        self._without = self._looked - self._used()

    @property
    def goes_on(self) -> bool:
        """Whether to look again instead of going to sleep."""
        now = self._clock()
        if now - self._looked > TAKEN and (lost := now - self._used() - self._without) > TAKEN:
            self._without += lost
            self._since, self._lost = (now, lost) if now - self._since > WINDOW else (self._since, self._lost + lost)
            if self._lost > MUCH:
                self._ends, self._resumes = now, now + RESPITE
        self._looked = now
        return now < self._ends
