"""Chooses what is evicted from a cache: models from a device's memory, results of nodes. Must not
know what the things are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Protocol


class Policy(Protocol):
    """Chooses the next victim of eviction."""

    def used(self, key: Hashable) -> None:
        """Notes a use of what is resident, or becomes so."""

    def victim(self, spared: frozenset[Hashable]) -> Hashable | None:
        """Returns the next victim among the resident, except `spared`; None when there is none."""

    def removed(self, key: Hashable) -> None:
        """Forgets what is no longer resident."""


class LeastRecentlyUsed:
    """Evicts what was used longest ago first."""

    def __init__(self) -> None:
        self._order: dict[Hashable, None] = {}  # the latest use last

    def used(self, key: Hashable) -> None:
        self._order.pop(key, None)
        self._order[key] = None

    def victim(self, spared: frozenset[Hashable]) -> Hashable | None:
        return next((key for key in self._order if key not in spared), None)

    def removed(self, key: Hashable) -> None:
        del self._order[key]


class LeastFrequentlyUsed:
    """Evicts what was used least often first, of equals the one that was used longest ago.

    With dynamic aging (LFU-DA: Arlitt et al. 2000, "Evaluating content management techniques for
    Web proxy caches"): what comes in starts at the count of the last that went, so that what was
    popular once does not stay for ever. It has no constant to tune.
    """

    def __init__(self) -> None:
        self._age = 0
        self._uses: dict[Hashable, int] = {}
        # uses + the age at the last of them, number of that use
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
"""Maps names to policies, as people choose them."""
