"""Caches results for a server. All users share the results; each has a run history and node
objects.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from katz_graph.executor.graph.result_store import ResultCache

USERS = 64  # users whose history and objects are stored


class Caches:
    """Lends caches to runs. `shared` holds the results."""

    def __init__(self, shared: ResultCache) -> None:
        self._shared = shared
        self._idle: OrderedDict[str | None, ResultCache] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._shared)

    @contextmanager
    def lent(self, user: str | None) -> Iterator[ResultCache]:
        """Lends a user's cache to one run. If a user has several concurrent runs, all but the first
        start with no history and new objects.
        """
        with self._lock:
            own = self._idle.pop(user, None)
            if own is None:
                own = self._shared.fork()
        try:
            with own.under_way():
                yield own
        finally:
            with self._lock:
                self._idle[user] = own
                while len(self._idle) > USERS:
                    self._idle.popitem(last=False)

    def clear(self) -> None:
        """Drops all results and objects. No run may be active."""
        with self._lock:
            self._idle.clear()
            self._shared.clear()
