"""Decides which items stay in memory within a budget of bytes; an eviction policy chooses the
victims. Must not know the items' nature.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.eviction import Policy

MODELS, CONTROL_NETS = "models", "ControlNets"  # kinds of items in a budget
STALE = 64  # loads; an item unused for this many is evicted first


class NoRoom(RunError):
    """Signals that items in use leave too little room; a retry may succeed after their release.
    `what`: the kind of items.
    """

    def __init__(self, message: str, what: str = MODELS) -> None:
        super().__init__(message)
        self.what = what


@dataclass(frozen=True, slots=True)
class ModelUse:
    """Reports the use of a device's memory by models."""

    loads: int  # modules loaded
    fills: int  # loads into the memory of a module of equal form
    returns: int  # loads from a copy on the host
    evictions: int  # modules evicted for other modules
    load_seconds: float
    evicted_seconds: float  # load seconds of the evicted modules
    resident_bytes: int
    budget_bytes: float
    reserve_bytes: float  # left free for computing
    short: int  # number of times that memory ran out


@dataclass(frozen=True, slots=True)
class ControlNetUse:
    """Counts uses of loaded ControlNets (`hits`) and of others (`misses`), and the seconds of
    loading.
    """

    hits: int
    misses: int
    evictions: int
    load_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Counts uses of LoRA files in memory (`hits`) and of others (`misses`), merges of LoRA sets
    into models, and the seconds of reads and merges.
    """

    hits: int
    misses: int
    evictions: int
    read_seconds: float
    resident_bytes: int
    budget_bytes: float
    merges: int
    merge_seconds: float


class Residency:
    """Tracks a budget: sizes and pins of resident items, hits and misses. Moves no bytes itself.

    Leaves `reserve_bytes` of the budget free while items can be evicted. Both `budget_bytes` and
    `reserve_bytes` may change at any time.
    """

    def __init__(self, budget_bytes: float, policy: Policy, what: str = MODELS) -> None:
        self.budget_bytes, self.reserve_bytes = budget_bytes, 0.0
        self._what = what
        self.hits = self.misses = self.evictions = 0
        self._policy = policy
        self._sizes: dict[Hashable, int] = {}
        self._pins: dict[Hashable, int] = {}
        self._used: dict[Hashable, int] = {}  # value of `misses` at the last use
        self._total = 0

    @property
    def resident_bytes(self) -> int:
        return self._total

    def __contains__(self, key: Hashable) -> bool:
        return key in self._sizes

    def touch(
        self, key: Hashable, size: int, name: str = "", alike: Collection[Hashable] = ()
    ) -> tuple[Hashable, ...]:
        """Records a use of `key`, which takes `size` bytes and becomes resident. Returns the
        unpinned keys to evict for it, in order. Evicts one of `alike` first, unless the policy's
        victim was unused for `STALE` misses.

        Raises InputError if the item exceeds the budget, NoRoom if pinned items leave too little.
        Neither changes the state.
        """
        if key in self._sizes:
            self.hits += 1
            self._note(key)
            return ()
        evicted = self._victims(size, name or str(key), alike)
        self.misses += 1
        for victim in evicted:
            self.evict(victim)
        self._sizes[key] = size
        self._total += size
        self._note(key)
        return evicted

    def _note(self, key: Hashable) -> None:
        self._used[key] = self.misses
        self._policy.used(key)

    def _victims(self, size: int, name: str, alike: Collection[Hashable]) -> tuple[Hashable, ...]:
        if size > self.budget_bytes:
            raise InputError(
                f"{name}: takes {size:,} bytes alone, the budget is {self.budget_bytes:,} "
                "bytes: raise it"
            )
        chosen = self._chosen(
            self._total + size + self.reserve_bytes - self.budget_bytes, frozenset(alike)
        )
        if self._total + size - sum(self._sizes[victim] for victim in chosen) > self.budget_bytes:
            raise NoRoom(
                f"{name}: takes {size:,} bytes, models in use take {self.pinned_bytes:,} of the "
                f"budget of {self.budget_bytes:,.0f} bytes: wait until some are released, or "
                "raise the budget",
                self._what,
            )
        return chosen

    def _chosen(self, size: float, alike: frozenset[Hashable]) -> tuple[Hashable, ...]:
        """Returns the keys to evict to free `size` bytes, see `touch`."""
        oldest = self.idle(size)
        if not oldest or self.misses - self._used[oldest[0]] >= STALE:
            return oldest
        first = self.idle(1, frozenset(self._sizes) - alike)
        return first + self.idle(size - sum(map(self._sizes.__getitem__, first)), frozenset(first))

    def idle(
        self, size: float = math.inf, spared: frozenset[Hashable] = frozenset()
    ) -> tuple[Hashable, ...]:
        """Returns the keys to evict, in order, to free `size` bytes, or all if they do not suffice.
        Omits pinned and `spared` keys.
        """
        chosen: list[Hashable] = []
        spared = spared | frozenset(self._pins)
        while size > 0 and (victim := self._policy.victim(spared)) is not None:
            chosen.append(victim)
            spared = spared | {victim}
            size -= self._sizes[victim]
        return tuple(chosen)

    def evict(self, key: Hashable) -> None:
        """Removes an item, and counts an eviction."""
        self.evictions += 1
        self.forget(key)

    @property
    def pinned_bytes(self) -> int:
        return sum(self._sizes[pinned] for pinned in self._pins)

    def pin(self, key: Hashable) -> None:
        """Protects an item from eviction until each `pin` has an `unpin`."""
        if key not in self._sizes:
            raise KeyError(key)
        self._pins[key] = self._pins.get(key, 0) + 1

    @property
    def has_pins(self) -> bool:
        return bool(self._pins)

    def is_pinned(self, key: Hashable) -> bool:
        return key in self._pins

    def unpin(self, key: Hashable) -> None:
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]

    def resize(self, key: Hashable, size: int) -> None:
        """Changes the size of an item."""
        self._total += size - self._sizes[key]
        self._sizes[key] = size

    def forget(self, key: Hashable) -> None:
        """Removes an item that was dropped or could not be loaded."""
        self._total -= self._sizes.pop(key)
        del self._used[key]
        self._policy.removed(key)
