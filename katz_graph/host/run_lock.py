"""Lets one run at a time execute code that may change state of the whole process. Must not know
packs and nodes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_INTERVAL_S = 0.1


class RunLock:
    """A lock that one run holds at a time. Runs are named by their arrival in seconds; the earliest
    waiting run gets the lock next. Reentrant: a run that holds it may enter again, in any thread.

    `check` is called every CHECK_INTERVAL_S during a wait; its error ends the wait.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: float | None = None
        # statements inside `held`, by run: of the owner, and of runs inside `released`
        self._inside = Counter[float]()
        self._waiting: list[float] = []

    @contextmanager
    def held(self, run: float, check: Callable[[], None]) -> Iterator[None]:
        """Holds the lock inside the `with` statement."""
        with self._changed:
            self._acquire(run, check)
            self._inside[run] += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[run] -= 1
                if self._inside[run] <= 0:
                    self._forget(run)

    @contextmanager
    def released(self, run: float, check: Callable[[], None]) -> Iterator[None]:
        """Lets other runs have the lock inside the `with` statement. Does nothing if this run does
        not hold it. The run does not get the lock again if all its code has left meanwhile in other
        threads, or after an error of `check`.
        """
        with self._changed:
            had = self._owner == run
            if had:
                self._owner = None
                self._changed.notify_all()
        try:
            yield
        finally:
            if had:
                with self._changed:
                    self._acquire(run, check, again=True)

    def ended(self, run: float) -> None:
        """Frees the lock of a run whose code has not left, such as a task that ignores its
        cancellation.
        """
        with self._changed:
            self._forget(run)

    def _forget(self, run: float) -> None:
        self._inside.pop(run, None)
        if self._owner == run:
            self._owner = None
        self._changed.notify_all()

    def _acquire(self, run: float, check: Callable[[], None], again: bool = False) -> None:
        self._waiting.append(run)
        try:
            while not again or run in self._inside:
                if self._owner == run or (self._owner is None and run == min(self._waiting)):
                    self._owner = run
                    return
                self._changed.wait(CHECK_INTERVAL_S)
                check()
        finally:
            self._waiting.remove(run)
            self._changed.notify_all()
