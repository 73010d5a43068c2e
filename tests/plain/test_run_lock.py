"""Code of packs runs for one run at a time, the earliest first."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from katz_graph.core.errors import Cancelled
from katz_graph.host.run_lock import RunLock


def never() -> None:
    """Ends no wait."""


def test_the_earliest_of_the_waiting_runs_is_next() -> None:
    lock, order = RunLock(), list[float]()

    def enter(run: float) -> None:
        with lock.held(run, never):
            order.append(run)

    with ThreadPoolExecutor(3) as pool, lock.held(1.0, never):
        for run in (4.0, 2.0, 3.0):
            pool.submit(enter, run)
        while len(lock._waiting) < 3:
            time.sleep(0.001)
        with lock.held(1.0, never):  # its own nodes may overlap
            pass
        assert not order
    assert order == [2.0, 3.0, 4.0]


def test_others_enter_while_a_run_waits_for_a_device() -> None:
    lock, inside = RunLock(), threading.Event()
    leave = threading.Event()

    def enter() -> None:
        with lock.held(2.0, never):
            inside.set()
            assert leave.wait(10)

    with ThreadPoolExecutor(1) as pool, lock.held(1.0, never):
        with lock.released(1.0):
            done = pool.submit(enter)
            assert inside.wait(10)
            leave.set()
        assert done.done() or lock._owner == 1.0
    with lock.released(1.0):  # a run that does not hold it
        pass
    with lock.held(3.0, never):
        pass


def test_a_cancelled_run_stops_waiting() -> None:
    lock = RunLock()

    def cancelled() -> None:
        raise Cancelled("cancelled")

    with lock.held(1.0, never), pytest.raises(Cancelled), lock.held(2.0, cancelled):
        pass
    assert not lock._waiting
    with lock.held(3.0, never):
        pass
