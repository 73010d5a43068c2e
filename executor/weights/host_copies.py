"""Caches the weights of models evicted from a GPU in pinned host memory. Reloading a model then
copies them instead of reading files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor, nn

from katz_graph.executor.weights.weight_cache import WeightCache, byte_size
from katz_graph.host.memory import RanOut, attempt, free_bytes
from katz_graph.host.transfer import to_host
from katz_graph.models.loading.fill import memory_of

SHARE = 1 / 8  # of the host's free memory, for each GPU


def share_of_host() -> float:
    return SHARE * free_bytes()


def nothing() -> float:
    return 0.0


class HostCopies:
    """Caches weights by model key within `room` bytes, evaluated at the first eviction."""

    def __init__(self, room: Callable[[], float] = nothing) -> None:
        self._cache = WeightCache(room)

    @property
    def bytes(self) -> int:
        return self._cache.bytes

    @torch.no_grad()
    def keep(self, key: Hashable, module: nn.Module, before: Callable[[], None]) -> None:
        """Copies a module's weights, unless they are cached, exceed the budget, or memory runs out.
        Calls `before` first, which restores the loaded weights.
        """
        size = byte_size(memory_of(module).values())
        if self.get(key) is not None or not self._cache.make_room(size):
            return
        before()
        there = memory_of(module)
        copies = attempt(lambda: {name: to_host(weight) for name, weight in there.items()})
        if not isinstance(copies, RanOut):
            self._cache.keep(key, copies)

    def get(self, key: Hashable) -> Mapping[str, Tensor] | None:
        """Returns the weights of a model, if cached."""
        return self._cache.get(key)

    def clear(self) -> None:
        self._cache.forget(lambda key: True)
