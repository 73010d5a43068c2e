"""Measures how long another process has been silent. Must not know its messages."""

from __future__ import annotations

import time


class Heartbeat:
    """Sums the ticks, `interval` seconds apart, since the last sign of life.

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
