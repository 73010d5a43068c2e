"""Caches results for a server: results are shared by all, a run's history and the objects of its
nodes belong to its user.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from katz_graph.executor.graph.result_store import ResultCache

USERS = 64  # whose history and objects are remembered


class Caches:
    """`shared` has the results, as `ResultCache.parse` understands the operator's choice."""

    def __init__(self, shared: ResultCache) -> None:
        self._shared = shared
        self._idle: OrderedDict[str | None, ResultCache] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._shared)

    @contextmanager
    def lent(self, user: str | None) -> Iterator[ResultCache]:
        """Lends a user's cache to one run. Of runs of one user at the same time, all but the first
        begin with no history and new objects.
        """
        with self._lock:
            own = self._idle.pop(user, None)
            if own is None:
                own = self._shared.beside()
        try:
            with own.under_way():
                yield own
        finally:
            with self._lock:
                self._idle[user] = own
                while len(self._idle) > USERS:
                    self._idle.popitem(last=False)

    def clear(self) -> None:
        """Forgets all results and objects. No run may be under way."""
        with self._lock:
            self._idle.clear()
            self._shared.clear()
