"""Lets one run at a time execute code that may change state of the whole process. Must not know
packs and nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_INTERVAL_S = 0.1


class RunLock:
    """Is held by a run, named by its arrival in seconds. Of the runs that wait for it, the earliest
    gets it next. Reentrant: a run that holds it may enter again, in any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: float | None = None
        self._depth = 0
        self._waiting: list[float] = []

    @contextmanager
    def held(self, run: float, check: Callable[[], None]) -> Iterator[None]:
        """Holds the lock inside the `with` statement. While it waits, it calls `check` every
        CHECK_INTERVAL_S; an error of `check` ends the wait.
        """
        self._acquire(run, 1, check)
        try:
            yield
        finally:
            with self._changed:
                self._depth -= 1
                if not self._depth:
                    self._owner = None
                    self._changed.notify_all()

    @contextmanager
    def released(self, run: float) -> Iterator[None]:
        """Lets other runs have the lock inside the `with` statement. Does nothing if this run does
        not hold it.
        """
        with self._changed:
            depth = self._depth if self._owner == run else 0
            if depth:
                self._owner, self._depth = None, 0
                self._changed.notify_all()
        try:
            yield
        finally:
            if depth:
                self._acquire(run, depth, lambda: None)

    def _acquire(self, run: float, depth: int, check: Callable[[], None]) -> None:
        with self._changed:
            self._waiting.append(run)
            try:
                while not (
                    self._owner == run or (self._owner is None and run == min(self._waiting))
                ):
                    self._changed.wait(CHECK_INTERVAL_S)
                    check()
                self._owner = run
                self._depth += depth
            finally:
                self._waiting.remove(run)
                self._changed.notify_all()
