"""Orders work on the host by due times, such as plans, of which the interpreter computes one at a
time anyway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from katz_graph.serving.policy import ServingPolicy

CHECK_INTERVAL_S = 0.1


class DueLock:
    """A lock that waiting runs get in the order of `ServingPolicy`. Times are seconds on `clock`.

    `check` is called every CHECK_INTERVAL_S during a wait; its error ends the wait.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._is_held = False
        self._policy: ServingPolicy[object] = ServingPolicy()
        self._waiting: list[object] = []

    @contextmanager
    def held(self, due: float, arrival: float, check: Callable[[], None]) -> Iterator[None]:
        """Holds the lock inside the `with` statement. `due`: inf for none."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            self._policy.join(turn, arrival, due)
            try:
                while self._is_held or self._next() is not turn:
                    self._changed.wait(CHECK_INTERVAL_S)
                    check()
                self._is_held = True
            finally:
                self._waiting.remove(turn)
                self._policy.leave(turn)
        try:
            yield
        finally:
            with self._changed:
                self._is_held = False
                self._changed.notify_all()

    def _next(self) -> object:
        return self._policy.ranked(self._waiting, self._clock())[0]
