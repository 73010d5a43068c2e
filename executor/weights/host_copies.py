"""Keeps the weights of models that had to leave a GPU in pinned memory of the host, so that coming
back is a copy, and no file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping

import torch
from torch import Tensor, nn

from katz_graph.executor.weights.weight_cache import WeightCache, byte_size
from katz_graph.host.memory import RanOut, attempt, free_bytes
from katz_graph.host.transfer import to_host
from katz_graph.models.loading.fill import named_tensors

SHARE = 1 / 8  # of the host's free memory, for each of several GPUs


def share_of_host() -> float:
    return SHARE * free_bytes()


def nothing() -> float:
    return 0.0


class HostCopies:
    """Keeps weights by the key of their model within `room` bytes, which is asked when the first
    leaves.
    """

    def __init__(self, room: Callable[[], float] = nothing) -> None:
        self._cache = WeightCache(room)

    @property
    def bytes(self) -> int:
        return self._cache.bytes

    @torch.no_grad()
    def keep(self, key: Hashable, module: nn.Module, before: Callable[[], None]) -> None:
        """Copies a module's weights, unless they are here, are too many, or memory runs out.
        `before` makes them what they were when they were loaded.
        """
        there = named_tensors(module)
        if self.get(key) is not None or not self._cache.make_room(byte_size(there.values())):
            return
        before()
        copies = attempt(lambda: {name: to_host(weight) for name, weight in there.items()})
        if not isinstance(copies, RanOut):
            self._cache.keep(key, copies)

    def get(self, key: Hashable) -> Mapping[str, Tensor] | None:
        """Returns the weights of a model, if they are here."""
        return self._cache.get(key)

    def clear(self) -> None:
        self._cache.forget(lambda key: True)
