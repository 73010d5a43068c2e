"""Defines cache eviction policies for models in a device's memory and results of nodes. Must not
know the types of the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Protocol


class Policy(Protocol):
    """Chooses the next entry to evict."""

    def used(self, key: Hashable) -> None:
        """Records a use of a cached entry, or adds a new one."""

    def victim(self, spared: frozenset[Hashable]) -> Hashable | None:
        """Returns the next entry to evict except those in `spared`; None if none remains."""

    def removed(self, key: Hashable) -> None:
        """Forgets an evicted entry."""


class LeastRecentlyUsed:
    """Evicts the least recently used entry."""

    def __init__(self) -> None:
        self._order: dict[Hashable, None] = {}  # ordered by latest use

    def used(self, key: Hashable) -> None:
        self._order.pop(key, None)
        self._order[key] = None

    def victim(self, spared: frozenset[Hashable]) -> Hashable | None:
        return next((key for key in self._order if key not in spared), None)

    def removed(self, key: Hashable) -> None:
        del self._order[key]


class LeastFrequentlyUsed:
    """Evicts the least frequently used entry; of equals, the least recently used.

    Uses dynamic aging (LFU-DA: Arlitt et al. 2000, "Evaluating content management techniques for
    Web proxy caches"): a new entry starts with the priority of the last evicted one, so that
    formerly popular entries expire. Has no parameter to tune.
    """

    def __init__(self) -> None:
        self._age = 0
        self._uses: dict[Hashable, int] = {}
        # (use count + age at the last use, sequence number of the last use)
        self._priority: dict[Hashable, tuple[int, int]] = {}
        self._clock = count()

    def used(self, key: Hashable) -> None:
        self._uses[key] = self._uses.get(key, 0) + 1
        self._priority[key] = (self._uses[key] + self._age, next(self._clock))

    def victim(self, spared: frozenset[Hashable]) -> Hashable | None:
        candidates = (
            (key for key in self._priority if key not in spared) if spared else self._priority
        )
        return min(candidates, key=self._priority.__getitem__, default=None)

    def removed(self, key: Hashable) -> None:
        self._age = max(self._age, self._priority.pop(key)[0])
        del self._uses[key]


POLICIES: Mapping[str, Callable[[], Policy]] = {
    "lru": LeastRecentlyUsed,
    "lfu": LeastFrequentlyUsed,
}
"""Maps the names of options to policies."""
