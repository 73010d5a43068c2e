"""Computes the bytes of a device that computing and movable data leave to models."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from katz_graph.host.memory import GB
from katz_graph.models.loading.memory import DeviceMemory

# recorded compute peaks, one per interval between two loads; the largest sets the reserve
PEAKS = 32
MIN_RESERVE_BYTES = 2**30  # minimum bytes reserved for computing
RESERVED = 1 / 8  # maximum share of the memory that this minimum may take
MOVABLE = 1 / 4  # maximum share of the memory for movable data


class Movable(Protocol):
    """Data on the device that can move to the host at any time."""

    @property
    def device_bytes(self) -> int:
        """Returns the bytes on the device."""

    def give_back(self, size: float) -> None:
        """Frees `size` bytes on the device, or all."""


class Room:
    """Computes the room on a device. `model_bytes`: the budget of models and movable data. None:
    the free bytes of `memory`, less the largest recent compute peak as a reserve.
    """

    def __init__(
        self,
        model_bytes: int | None,
        memory: DeviceMemory | None,
        movable: Callable[[], Iterable[Movable]],
    ) -> None:
        self.memory, self._model_bytes, self._movable = memory, model_bytes, movable
        self._moved: int = 0  # bytes of movable data on the device; other threads read it
        self._peaks: deque[float] = deque(maxlen=PEAKS)

    @property
    def free(self) -> float:
        return math.inf if self.memory is None else self.memory.free()

    @property
    def is_measured(self) -> bool:
        """Returns whether the budget of models is measured, and so includes computing."""
        return self._model_bytes is None and self.memory is not None

    @property
    def movable_bytes(self) -> int:
        return self._moved

    def limits(
        self, resident: float, extra_bytes: float = 0.0, held: float = 0.0
    ) -> tuple[float, float]:
        """Returns the budget of models in bytes, and the bytes to leave free while modules can be
        evicted, at least `extra_bytes`. `resident`: bytes of loaded models. `held`: bytes of
        modules evicted but not yet freed.
        """
        if self._model_bytes is not None:
            return self._model_bytes, 0.0
        if self.memory is None:
            return math.inf, 0.0
        return self.memory.free() + resident + self._moved + held, max(self._reserve(), extra_bytes)

    def fit(self, needed: float, budget: float) -> None:
        """Moves movable data to the host until models have `needed` bytes of the budget."""
        self.give_back(needed + self._moved - budget)

    def give_back(self, size: float) -> float:
        """Moves movable data to the host until `size` bytes are freed. Returns the freed bytes."""
        before = self._moved
        for one in self._movable():
            one.give_back(size - (before - self._moved))
            self.count()
        return before - self._moved

    @contextmanager
    def keeping(self, resident: float) -> Iterator[float]:
        """Yields the bytes that movable data may add without evicting a model, at most to a share
        of the memory. Allocations inside the `with` statement do not count as computing.
        """
        self.measure()
        try:
            yield self._spare(resident)
        finally:
            self.count()
            self.watch()

    def _spare(self, resident: float) -> float:
        """Returns the bytes not used by models, movable data and computing."""
        of_budget = (
            math.inf if self._model_bytes is None else self._model_bytes - resident - self._moved
        )
        if self.memory is None:
            return of_budget
        of_share = MOVABLE * self.memory.total - self._moved
        return min(of_budget, of_share, self.free - self._reserve())

    def count(self) -> None:
        """Recounts the bytes of movable data after a change."""
        self._moved = sum(one.device_bytes for one in self._movable())

    def _reserve(self) -> float:
        """Returns the bytes reserved for computing."""
        total = 0.0 if self.memory is None else self.memory.total
        return max([min(MIN_RESERVE_BYTES, RESERVED * total), *self._peaks])

    def measure(self) -> None:
        """Records the peak memory of computing since `watch`."""
        if self.memory is not None:
            self._peaks.append(self.memory.peak())

    def watch(self) -> None:
        """Starts measuring peak memory use."""
        if self.memory is not None:
            self.memory.watch()

    def collect(self) -> None:
        """Releases the memory of unreferenced objects."""
        if self.memory is not None:
            self.memory.collect()

    def __str__(self) -> str:
        """Describes the free memory for messages; empty without measurements."""
        if self.memory is None:
            return ""
        free, total = self.memory.free() / GB, self.memory.total / GB
        return f"{free:.2f} of {total:.2f} GB of {self.memory.device} are free"
