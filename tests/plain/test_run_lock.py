"""Code of packs runs for one run at a time, the earliest first."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from katz_graph.core.errors import Cancelled
from katz_graph.host.run_lock import RunLock


def never() -> None:
    """Ends no wait."""


def cancelled() -> None:
    raise Cancelled("cancelled")


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
        with lock.released(1.0, never):
            done = pool.submit(enter)
            assert inside.wait(10)
            leave.set()
        assert done.done() or lock._owner == 1.0
    with lock.released(1.0, never):  # a run that does not hold it
        pass
    with lock.held(3.0, never):
        pass


def test_a_cancelled_run_stops_waiting() -> None:
    lock = RunLock()
    with lock.held(1.0, never), pytest.raises(Cancelled), lock.held(2.0, cancelled):
        pass
    assert not lock._waiting
    with lock.held(3.0, never):
        pass


def test_a_cancelled_run_gets_no_lock_again_after_its_wait_for_a_device() -> None:
    lock, other = RunLock(), ExitStack()
    with pytest.raises(Cancelled), lock.held(1.0, never), lock.released(1.0, cancelled):
        other.enter_context(lock.held(2.0, never))
    with pytest.raises(Cancelled), lock.held(3.0, cancelled):
        pytest.fail("run 2 is inside")
    other.close()
    with lock.held(3.0, never):
        pass


def test_code_that_leaves_during_a_call_of_its_own_thread_frees_the_lock_once() -> None:
    lock, call, other = RunLock(), ExitStack(), ExitStack()
    with lock.held(1.0, never):
        call.enter_context(lock.released(1.0, never))
        other.enter_context(lock.held(2.0, never))
    with pytest.raises(Cancelled), lock.held(3.0, cancelled):
        pytest.fail("run 2 is inside")
    call.close()  # waits for nothing
    other.close()
    with lock.held(3.0, never):
        pass


def test_the_end_of_a_run_frees_the_lock_of_code_that_never_leaves() -> None:
    lock = RunLock()
    left = lock.held(1.0, never)
    left.__enter__()
    lock.ended(1.0)
    with lock.held(2.0, never):
        left.__exit__(None, None, None)
        with pytest.raises(Cancelled), lock.held(3.0, cancelled):
            pytest.fail("run 2 is inside")
