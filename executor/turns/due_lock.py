"""Orders work on the host by due times, such as plans, of which the interpreter computes one at a
time anyway.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_INTERVAL_S = 0.1


class DueLock:
    """A lock that the waiting run with the earliest due time gets next; then runs without one by
    arrival, and late ones last. Times are seconds on `clock`.

    `check` is called every CHECK_INTERVAL_S during a wait; its error ends the wait.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._is_held = False
        self._waiting: list[tuple[float, float]] = []  # due times and arrivals

    @contextmanager
    def held(self, due: float, arrival: float, check: Callable[[], None]) -> Iterator[None]:
        """Holds the lock inside the `with` statement. `due`: inf for none."""
        with self._changed:
            self._waiting.append((due, arrival))
            try:
                while self._is_held or self._next() != (due, arrival):
                    self._changed.wait(CHECK_INTERVAL_S)
                    check()
                self._is_held = True
            finally:
                self._waiting.remove((due, arrival))
        try:
            yield
        finally:
            with self._changed:
                self._is_held = False
                self._changed.notify_all()

    def _next(self) -> tuple[float, float]:
        now = self._clock()

        def rank(one: tuple[float, float]) -> tuple[int, float]:
            due, arrival = one
            if due == math.inf:
                return 1, arrival
            return (0, due) if now <= due else (2, arrival)

        return min(self._waiting, key=rank)
