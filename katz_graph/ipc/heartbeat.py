"""Measures for how long another process has been silent. Knows nothing of what its signs of life are."""

from __future__ import annotations

import time


class Heartbeat:
    """Adds up seconds of silence, by ticks that are `interval` seconds apart, until somebody has `heard` the other process.

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
