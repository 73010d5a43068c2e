"""Host work of the run that is due first comes first."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import eventually

from katz_graph.core.errors import Cancelled
from katz_graph.executor.turns.due_lock import DueLock


def test_the_run_that_is_due_first_gets_the_lock_next_and_late_ones_last() -> None:
    lock, order = DueLock(lambda: 10.0), list[str]()
    waits = {
        "late": (9.0, 1.0),
        "free": (math.inf, 2.0),
        "due later": (30.0, 5.0),
        "due": (20.0, 3.0),
        "free later": (math.inf, 4.0),
    }

    def work(name: str) -> None:
        with lock.held(*waits[name], lambda: None):
            order.append(name)

    with ThreadPoolExecutor(len(waits)) as pool:
        with lock.held(math.inf, 0.0, lambda: None):
            ended = [pool.submit(work, name) for name in waits]
            eventually(lambda: len(lock._waiting) == len(waits), 10.0)
        for one in ended:
            one.result(10.0)
    assert order == ["due", "due later", "free", "free later", "late"]


def test_a_cancelled_run_waits_no_longer() -> None:
    lock, cancelled = DueLock(), threading.Event()

    def check() -> None:
        if cancelled.is_set():
            raise Cancelled("cancelled")

    def wait() -> None:
        with lock.held(math.inf, 2.0, check):
            pass

    with ThreadPoolExecutor(1) as pool, lock.held(math.inf, 1.0, lambda: None):
        waiting = pool.submit(wait)
        cancelled.set()
        with pytest.raises(Cancelled):
            waiting.result(10.0)
    with lock.held(math.inf, 3.0, check):
        pass
