"""Makes this process's OpenMP threads sleep instead of spin while they wait for each other, if
other programs want the processors.

An OpenMP thread that waits for its team spins for milliseconds before it sleeps, because sleeping
and waking take longer than most operations of a small model. If another program uses one of the
processors, the whole team spins at every operation until the displaced thread is done, and a run
takes ten to fifty times as long. GNU's OpenMP spins only a thousand times if it manages more
threads than processors (its manual, GOMP_SPINCOUNT; `settings.prepare_to_compute`). So this module
holds idle teams while other programs compute. The division of work among threads, and so every bit
of a result, stays the same.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from katz_graph.core.devices import processors
from katz_graph.host.schedule import THREADS, scheduled
from katz_graph.settings.environment import waiting_is_ours

LOAD_CHECK_INTERVAL_S = 0.1  # seconds per measurement
# processors that this process's threads wait for on average, above which others want them
MAX_PROCESSORS_LOST = 0.3
# seconds for which idle teams are held until the next measurement; doubled each time that other
# programs still compute
FIRST_HOLD_S, MAX_HOLD_S = 1.0, 8.0
GRAIN = 32768  # torch's minimum number of values per thread


class SpinGuard:
    """Watches a thread that computes with a team of `threads`, between `begin` and `rest`, until
    `close`. Does nothing if the user has configured how threads wait, or if the kernel does not
    report the time that threads wait for a processor.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._teams = teams_beyond(processors(), threads)
        self._computes, self._closed = threading.Event(), threading.Event()
        self._watcher: threading.Thread | None = None
        if (
            self._teams
            and THREADS.is_dir()
            and hasattr(ctypes.CDLL(None), "omp_set_num_threads")
            and waiting_is_ours()
        ):
            self._watcher = threading.Thread(
                target=self._watch, name="katz-spin-guard", daemon=True
            )
            self._watcher.start()

    def begin(self) -> None:
        """Marks the thread as computing."""
        if not self._computes.is_set():  # `set` takes a lock, at every unit
            self._computes.set()

    def rest(self) -> None:
        """Marks the thread as idle; contention is ignored until the next `begin`."""
        self._computes.clear()

    def close(self) -> None:
        """Stops the watcher and releases held teams. Required before the interpreter exits, because
        their threads are inside OpenMP's code.
        """
        self._closed.set()
        self._computes.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        seconds = FIRST_HOLD_S
        while self._computes.wait() and not self._closed.is_set():
            before, began = scheduled(), time.perf_counter()
            self._closed.wait(LOAD_CHECK_INTERVAL_S)
            if (scheduled() - before).waited < MAX_PROCESSORS_LOST * (time.perf_counter() - began):
                seconds = FIRST_HOLD_S
                continue
            with idle_teams(self._teams, self._threads):
                self._closed.wait(seconds)
            seconds = min(2 * seconds, MAX_HOLD_S)


def teams_beyond(available: int, threads: int) -> int:
    """Returns the number of idle teams, each as large as the working one, needed for threads to
    outnumber processors. A team includes its creating thread.
    """
    return (available - 1) // (threads - 1) if 1 < threads <= available else 0


@contextmanager
def idle_teams(number: int, threads: int) -> Iterator[None]:
    """Holds teams of sleeping OpenMP threads until the end of the block."""
    released = threading.Event()
    holders = [
        threading.Thread(target=_hold, args=(threads, released), name="katz-idle-team", daemon=True)
        for _ in range(number)
    ]
    for holder in holders:
        holder.start()
    try:
        yield
    finally:
        released.set()
        for holder in holders:
            holder.join()


def _hold(threads: int, released: threading.Event) -> None:
    """Holds the team that OpenMP creates for this thread, until `released` is set."""
    torch.get_num_threads()  # initializes the number of threads of this thread
    # torch.set_num_threads would change it for future threads too
    ctypes.CDLL(None).omp_set_num_threads(threads)
    torch.zeros(threads * GRAIN, dtype=torch.int8).add_(1)
    released.wait()
