"""Tells what this program itself changes of its process, which is no pack's doing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager

from katz_graph.host.process_aspects import Aspect


class OwnChanges:
    """Counts changes of this program, in any thread, by aspect."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: Counter[Aspect] = Counter()
        self._ended: Counter[Aspect] = Counter()

    @contextmanager
    def changing(self, aspect: Aspect) -> Iterator[None]:
        """Says that this program changes an aspect inside of the `with` statement."""
        with self._lock:
            self._begun[aspect] += 1
        try:
            yield
        finally:
            with self._lock:
                self._ended[aspect] += 1

    def ended(self) -> Mapping[Aspect, int]:
        """Returns the number of changes that are over."""
        with self._lock:
            return self._ended.copy()

    def since(self, ended: Mapping[Aspect, int]) -> Set[Aspect]:
        """Returns the aspects that were being changed at some time since these had `ended`."""
        with self._lock:
            return {
                aspect for aspect, begun in self._begun.items() if begun != ended.get(aspect, 0)
            }


own_changes = OwnChanges()
