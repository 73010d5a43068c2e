"""Limits the rate of events: a token bucket (RFC 2697, section 2, with one rate). Must not know the
events.
"""

from __future__ import annotations

from collections.abc import Callable


class RateLimit:
    """Allows `rate` a second, and `burst` at once after a rest. `clock` is in seconds."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._filled = burst, clock()

    def take(self, cost: float = 1.0) -> bool:
        """Takes tokens if the bucket has enough; False if not. A cost above the burst takes a full
        bucket, and the rest of it as debt.
        """
        if self.wait(cost) > 0:
            return False
        self._tokens -= cost
        return True

    def wait(self, cost: float = 1.0) -> float:
        """Returns the seconds until `take` would succeed."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        return max(0.0, (min(cost, self._burst) - self._tokens) / self._rate)
