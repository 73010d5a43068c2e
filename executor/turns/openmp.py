"""Has OpenMP's threads of this process sleep while they wait for each other, as long as other
programs want their processors.

A thread that waits for others of its team keeps its processor busy for milliseconds before it
sleeps, since to sleep and to wake takes longer than most operations of a small model. Where another
program computes there, the whole team waits so, at every operation, for the one that lost its
processor, and a run takes ten to fifty times as long. GNU's OpenMP looks only a thousand times
where it holds more threads than there are processors (its manual, GOMP_SPINCOUNT;
`settings.prepare_to_compute`). So idle teams are held while others are there: who computes what,
and with it every bit of a result, stays as it is.
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

LOOK = 0.1  # seconds between looks
# processors that this process's threads had to do without, above which others want them
WANTED = 0.3
# seconds for which idle teams are held, until the next look; twice as long each time that others
# are still there
FIRST, LONGEST = 1.0, 8.0
GRAIN = 32768  # values that torch gives a thread at least


class SpinGuard:
    """Watches a thread that computes with a team of `threads`, between `begin` and `rest`, until
    `close`. Does nothing where the user has said how threads wait, and where the kernel does not
    tell who had to do without a processor.
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
        """Notes that the thread computes."""
        self._computes.set()

    def rest(self) -> None:
        """Notes that it does not; what happens to the processors is of no interest."""
        self._computes.clear()

    def close(self) -> None:
        """Ends the watching, and the teams that are held: the interpreter must not end before their
        threads, which are in the midst of OpenMP's code.
        """
        self._closed.set()
        self._computes.set()
        if self._watcher is not None:
            self._watcher.join()

    def _watch(self) -> None:
        seconds = FIRST
        while self._computes.wait() and not self._closed.is_set():
            before, began = scheduled(), time.perf_counter()
            self._closed.wait(LOOK)
            if (scheduled() - before).waited < WANTED * (time.perf_counter() - began):
                seconds = FIRST
                continue
            with idle_teams(self._teams, self._threads):
                self._closed.wait(seconds)
            seconds = min(2 * seconds, LONGEST)


def teams_beyond(available: int, threads: int) -> int:
    """Counts the idle teams, as large as the one that works, that make for more threads than there
    are processors; a team shares one with whoever made it.
    """
    return (available - 1) // (threads - 1) if 1 < threads <= available else 0


@contextmanager
def idle_teams(number: int, threads: int) -> Iterator[None]:
    """Holds teams of OpenMP's threads, which sleep, until the end of the block."""
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
    """Holds a team: a thread that uses several makes one of its own, which ends with it."""
    torch.get_num_threads()  # once for every thread, it sets the number for this one
    # torch's own function sets that of future threads too
    ctypes.CDLL(None).omp_set_num_threads(threads)
    torch.zeros(threads * GRAIN, dtype=torch.int8).add_(1)
    released.wait()
