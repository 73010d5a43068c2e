"""Tells how many bytes of a device models may take, beside computing and what is kept with them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from katz_graph.host.memory import GB
from katz_graph.models.loading.memory import DeviceMemory

# stretches between two loads, of which the one that needed most for computing sets the reserve
PEAKS = 32
LEAST_RESERVE = 2**30  # bytes that are left for computing before it was measured,
RESERVED = 1 / 8  # but no more than this part of the memory


class Movable(Protocol):
    """Is kept on the device as long as there is room, and can go to the host at any time."""

    @property
    def device_bytes(self) -> int:
        """Returns what it takes of the device."""

    def give_back(self, size: float) -> None:
        """Frees so many bytes of the device, or all that it takes."""


class Room:
    """Counts the room of a device. `model_bytes`: what models and what is movable beside them may
    take. None: what `memory` has free, less a reserve for computing, which is the most that was
    needed lately.
    """

    def __init__(self, model_bytes: int | None, memory: DeviceMemory | None) -> None:
        self.memory, self._model_bytes = memory, model_bytes
        self.movable: Callable[[], Iterable[Movable]] = lambda: ()
        self._moved: int = 0  # of these, bytes on the device; other threads read it
        self._peaks: deque[float] = deque(maxlen=PEAKS)

    @property
    def free(self) -> float:
        """Returns the bytes of the device that nothing takes."""
        return math.inf if self.memory is None else self.memory.free()

    @property
    def movable_bytes(self) -> int:
        return self._moved

    def limits(
        self, resident: float, beside: float = 0.0, held: float = 0.0
    ) -> tuple[float, float]:
        """Returns the bytes that models may take, of which they take `resident`, and the part to
        leave free while something can be evicted, at least `beside`. `held`: what modules take that
        are evicted and not freed.
        """
        if self._model_bytes is not None:
            return self._model_bytes, 0.0
        if self.memory is None:
            return math.inf, 0.0
        return self.memory.free() + resident + self._moved + held, max(self._reserve(), beside)

    def fit(self, needed: float, budget: float) -> None:
        """Moves to the host what leaves less than `needed` bytes of a budget for models."""
        self.give_back(needed + self._moved - budget)

    def give_back(self, size: float) -> float:
        """Moves what is movable to the host, until so many bytes are free; returns how many are."""
        before = self._moved
        for one in self.movable():
            one.give_back(size - (before - self._moved))
            self.count()
        return before - self._moved

    @contextmanager
    def keeping(self, resident: float) -> Iterator[float]:
        """Yields the bytes that movable things may take from now on, without evicting any model.
        What is taken inside the `with` statement does not count as computing.
        """
        self.measure()
        try:
            yield self._spare(resident)
        finally:
            self.count()
            self.watch()

    def _spare(self, resident: float) -> float:
        """Returns the bytes that neither models, what is movable, nor computing take."""
        of_budget = (
            math.inf if self._model_bytes is None else self._model_bytes - resident - self._moved
        )
        return of_budget if self.memory is None else min(of_budget, self.free - self._reserve())

    def count(self) -> None:
        """Counts what is movable anew: some of it came or went."""
        self._moved = sum(one.device_bytes for one in self.movable())

    def _reserve(self) -> float:
        """Returns the bytes that are left for computing."""
        total = 0.0 if self.memory is None else self.memory.total
        return max([min(LEAST_RESERVE, RESERVED * total), *self._peaks])

    def measure(self) -> None:
        """Notes the memory that computing has needed since `watch`."""
        if self.memory is not None:
            self._peaks.append(self.memory.peak())

    def watch(self) -> None:
        """Measures what computing needs from now on."""
        if self.memory is not None:
            self.memory.watch()

    def collect(self) -> None:
        """Gives the memory of unreferenced objects back."""
        if self.memory is not None:
            self.memory.collect()

    def __str__(self) -> str:
        """Says for people what is free; empty where nobody measures."""
        if self.memory is None:
            return ""
        free, total = self.memory.free() / GB, self.memory.total / GB
        return f"{free:.2f} of {total:.2f} GB of {self.memory.device} are free"
