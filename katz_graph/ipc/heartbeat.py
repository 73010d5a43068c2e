"""Measures how long another process has been silent, and declares the messages that every process
understands.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ping:
    """Requests a `Pong`."""


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a ping."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the process: a worker after its current unit, a runner with its jobs."""


class Heartbeat:
    """Measures the seconds since the last sign of life, by ticks `interval` seconds apart.

    A late tick, after this process itself was suspended, counts as at most two intervals.
    """

    def __init__(self, interval: float) -> None:
        self.silence = 0.0
        self._interval, self._last = interval, time.monotonic()

    def received(self) -> None:
        self.silence = 0.0

    def tick(self) -> None:
        now = time.monotonic()
        self.silence += min(now - self._last, 2 * self._interval)
        self._last = now
