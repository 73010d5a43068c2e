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
        self._users: OrderedDict[str | None, ResultCache] = OrderedDict()  # the latest last
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._shared)

    @contextmanager
    def lent(self, user: str | None) -> Iterator[ResultCache]:
        """Lends a cache to one run of a user. Concurrent runs of a user share its history and node
        objects, as successive runs do.
        """
        with self._lock:
            own = self._users.pop(user, None)
            self._users[user] = own = self._shared.fork() if own is None else own
            while len(self._users) > USERS:
                self._users.popitem(last=False)
            lent = own.fork(same_user=True)
        with lent.under_way():
            yield lent

    def clear(self) -> None:
        """Drops all results and objects. No run may be active."""
        with self._lock:
            self._users.clear()
            self._shared.clear()
