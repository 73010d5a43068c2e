"""Measures for how long another process has been silent. Must not know its signs of life."""

from __future__ import annotations

import time


class Heartbeat:
    """Adds up the seconds of ticks, which are `interval` seconds apart, since a sign of life.

    A tick that came late, since this process was stopped itself, counts as two.
    """

    def __init__(self, interval: float) -> None:
        self.silence = 0.0
        self._interval, self._last = interval, time.monotonic()

    def heard(self) -> None:
        self.silence = 0.0

    def tick(self) -> None:
        now = time.monotonic()
        self.silence += min(now - self._last, 2 * self._interval)
        self._last = now
