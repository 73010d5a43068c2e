"""Calls functions in a limited number of threads, so that a call that hangs does not delay the
others. Must not know the functions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from katz_graph.web.rounds import Rounds

MAX_THREADS = 48
MAX_ABANDONED = 16  # expired calls after which the process must be replaced


@dataclass(slots=True)
class _Call:
    work: Callable[[], None]
    expire: Callable[[str], None]
    began: float = 0.0
    slow: bool = False
    expired: bool = False


class Answering:
    """Runs up to `at_once` calls concurrently. Clients take turns; a client's calls start in the
    order of `submit`. A call slower than `slow_s` no longer counts, so the next one starts. A call
    slower than `deadline_s` expires: its caller is notified, and its thread is abandoned. Calls
    `on_hung` once when too many threads are abandoned, and `prepare` at the start of each thread.
    """

    def __init__(
        self,
        name: str,
        at_once: int,
        slow_s: float,
        deadline_s: float,
        on_hung: Callable[[str], None],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._at_once = name, at_once
        self._slow_s, self._deadline_s = slow_s, deadline_s
        self._on_hung, self._prepare = on_hung, prepare
        self._changed = threading.Condition()
        self._waiting = Rounds[_Call]()
        self._running: list[_Call] = []
        self._closed = self._reported = False
        threading.Thread(target=self._supervise, name=name, daemon=True).start()

    def submit(
        self, work: Callable[[], None], expire: Callable[[str], None], client: str = ""
    ) -> None:
        """Calls `work` in a thread. Calls `expire` with the reason if it exceeds the deadline."""
        with self._changed:
            self._waiting.add(client, _Call(work, expire))
            self._changed.notify_all()

    def close(self) -> None:
        """Starts no more calls. Does not wait for running ones."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _supervise(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                expired = self._age(now)
                while self._has_room() and (taken := self._waiting.take()) is not None:
                    self._begin(taken[1], now)
                if not expired:
                    if self._closed:
                        return
                    self._changed.wait(self._next_look(time.monotonic()))
            for call in expired:
                call.expire(f"it took longer than {self._deadline_s:g} s")
            self._report_abandoned()

    def _age(self, now: float) -> list[_Call]:
        """Marks slow calls, and returns the calls that have just expired."""
        expired = []
        for call in self._running:
            call.slow = now - call.began >= self._slow_s
            if now - call.began >= self._deadline_s and not call.expired:
                call.expired = True
                expired.append(call)
        return expired

    def _has_room(self) -> bool:
        counted = sum(not call.slow for call in self._running)
        return counted < self._at_once and len(self._running) < MAX_THREADS

    def _next_look(self, now: float) -> float | None:
        """Returns the seconds until a running call becomes slow or expires, or None."""
        due = [
            call.began + limit
            for call in self._running
            for limit, passed in ((self._slow_s, call.slow), (self._deadline_s, call.expired))
            if not passed
        ]
        return min(max(0.0, min(due) - now), threading.TIMEOUT_MAX) if due else None

    def _report_abandoned(self) -> None:
        abandoned = sum(call.expired for call in self._running)
        if abandoned >= MAX_ABANDONED and not self._reported:
            self._reported = True
            self._on_hung(f"{abandoned} threads are stuck in checks or plans of nodes")

    def _begin(self, call: _Call, now: float) -> None:
        call.began = now
        self._running.append(call)
        threading.Thread(target=self._run, args=(call,), name=self._name, daemon=True).start()

    def _run(self, call: _Call) -> None:
        try:
            self._prepare()
            call.work()
        finally:
            with self._changed:
                self._running.remove(call)
                self._changed.notify_all()
