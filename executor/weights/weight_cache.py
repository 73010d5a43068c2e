"""Caches tensors within a budget of bytes. Must not know which models they belong to."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property

from torch import Tensor

from katz_graph.core.eviction import POLICIES
from katz_graph.models.loading.residency import Residency


class WeightCache:
    """Caches weights by key; evicts the least recently used first. `budget` is evaluated once, when
    the first weights are to be cached.
    """

    def __init__(self, budget: Callable[[], float]) -> None:
        self._asked = budget
        self._books = Residency(math.inf, POLICIES["lru"]())
        self._weights: dict[Hashable, Mapping[str, Tensor]] = {}

    @cached_property
    def _budget(self) -> float:
        return self._asked()

    @property
    def bytes(self) -> int:
        return self._books.resident_bytes

    def get(self, key: Hashable) -> Mapping[str, Tensor] | None:
        """Returns the weights of this key, if cached."""
        if key in self._books:
            self._books.touch(key, 0)
        return self._weights.get(key)

    def make_room(self, size: int) -> bool:
        """Evicts weights until `size` bytes are free. Returns false, evicting none, if `size`
        exceeds the budget.
        """
        if size > self._budget:
            return False
        for key in self._books.idle(self.bytes + size - self._budget):
            self._books.evict(key)
            del self._weights[key]
        return True

    def keep(self, key: Hashable, weights: Mapping[str, Tensor]) -> None:
        """Caches weights, after `make_room` for their size."""
        self._books.touch(key, byte_size(weights.values()))
        self._weights[key] = weights

    def clear(self) -> None:
        """Drops all weights."""
        self.forget(lambda _: True)

    def forget(self, which: Callable[[Hashable], bool]) -> None:
        """Drops the weights with keys that satisfy `which`."""
        for key in filter(which, list(self._weights)):
            self._books.forget(key)
            del self._weights[key]


def byte_size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
