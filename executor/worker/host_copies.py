"""Keeps the weights of models that had to leave a GPU in pinned memory of the host, so that coming
back is a copy, and no file is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from katz_graph.eviction import POLICIES
from katz_graph.host.memory import RanOut, attempt, free_bytes
from katz_graph.host.transfer import to_host
from katz_graph.models.loading.fill import named_tensors
from katz_graph.models.loading.residency import Residency

SHARE = 1 / 8  # of the host's free memory, for each of several GPUs


def share_of_host() -> float:
    return SHARE * free_bytes()


def nothing() -> float:
    return 0.0


class HostCopies:
    """Keeps weights by the key of their model within `room` bytes, which is asked once. What was
    used longest ago goes first.
    """

    def __init__(self, room: Callable[[], float] = nothing) -> None:
        self._asked = room
        self._books = Residency(math.inf, POLICIES["lru"]())
        self._weights: dict[Hashable, Mapping[str, Tensor]] = {}

    @cached_property
    def _room(self) -> float:
        return self._asked()

    @property
    def bytes(self) -> int:
        return self._books.resident_bytes

    @torch.no_grad()
    def keep(self, key: Hashable, module: nn.Module, before: Callable[[], None]) -> None:
        """Copies a module's weights, unless they are here, are too many, or memory runs out.
        `before` makes them what they were when they were loaded.
        """
        there = named_tensors(module)
        size = sum(weight.nbytes for weight in there.values())
        if key in self._books or size > self._room:
            return
        for gone in self._books.idle(self.bytes + size - self._room):
            self._books.evict(gone)
            del self._weights[gone]
        before()
        copies = attempt(lambda: {name: to_host(weight) for name, weight in there.items()})
        if not isinstance(copies, RanOut):
            self._books.touch(key, size)
            self._weights[key] = copies

    def get(self, key: Hashable) -> Mapping[str, Tensor] | None:
        """Returns the weights of a model, if they are here."""
        if key in self._books:
            self._books.touch(key, 0)
        return self._weights.get(key)

    def clear(self) -> None:
        for key in list(self._weights):
            self._books.forget(key)
        self._weights.clear()
