"""Records this program's changes to its process, to distinguish them from changes by packs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager

from katz_graph.host.process_aspects import Aspect


class OwnChanges:
    """Counts this program's changes by aspect. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: Counter[Aspect] = Counter()
        self._ended: Counter[Aspect] = Counter()

    @contextmanager
    def changing(self, aspect: Aspect) -> Iterator[None]:
        """Marks an aspect as being changed by this program inside the `with` statement."""
        with self._lock:
            self._started[aspect] += 1
        try:
            yield
        finally:
            with self._lock:
                self._ended[aspect] += 1

    def ended(self) -> Mapping[Aspect, int]:
        """Returns the number of completed changes per aspect."""
        with self._lock:
            return self._ended.copy()

    def since(self, ended: Mapping[Aspect, int]) -> Set[Aspect]:
        """Returns the aspects with a change in progress at any time since `ended` was taken."""
        with self._lock:
            return {
                aspect
                for aspect, started in self._started.items()
                if started != ended.get(aspect, 0)
            }


own_changes = OwnChanges()
