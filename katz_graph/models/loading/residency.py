"""Decides what stays in memory within a budget of bytes; an eviction policy chooses what goes.
Must not know what the things are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.eviction import Policy

MODELS, CONTROL_NETS = "models", "ControlNets"  # what a budget is for
STALE = 64  # loads: what was not used during so many makes room for what is used


class NoRoom(RunError):
    """Signals that what is in use leaves no room now; there will be when some of it is no longer in
    use. `what`: the things whose budget it is.
    """

    def __init__(self, message: str, what: str = MODELS) -> None:
        super().__init__(message)
        self.what = what


@dataclass(frozen=True, slots=True)
class ModelUse:
    """Reports models in a device's memory: modules loaded, `fills` of them into the place of one of
    equal form, `returns` from a copy on the host, and evicted for others; seconds that loading
    took, and that loading what was evicted would take again. `reserve_bytes` are kept free for
    computing; `short` is how often memory ran out.
    """

    loads: int
    fills: int
    returns: int
    evictions: int
    load_seconds: float
    evicted_seconds: float
    resident_bytes: int
    budget_bytes: float
    reserve_bytes: float
    short: int


@dataclass(frozen=True, slots=True)
class ControlNetUse:
    """Counts uses of ControlNets that were in memory (`hits`), or had to be loaded (`misses`), and
    what that took.
    """

    hits: int
    misses: int
    evictions: int
    load_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Counts LoRA files that were in memory when wanted (`hits`), or had to be read (`misses`), the
    seconds of reading, what they take of their budget; and how often sets of them were merged into
    models, with the seconds of that.
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
    """Keeps the books of a budget: sizes of what is resident, what of it is pinned, hits and
    misses. It moves no bytes itself.

    `reserve_bytes` of the budget are left free as long as there is something to evict for them.
    Both may be set anew at any time.
    """

    def __init__(self, budget_bytes: float, policy: Policy, what: str = MODELS) -> None:
        self.budget_bytes, self.reserve_bytes = budget_bytes, 0.0
        self._what = what
        self.hits = self.misses = self.evictions = 0
        self._policy = policy
        self._sizes: dict[Hashable, int] = {}
        self._pins: dict[Hashable, int] = {}
        self._used: dict[Hashable, int] = {}  # misses until the last use
        self._total = 0

    @property
    def resident_bytes(self) -> int:
        return self._total

    def __contains__(self, key: Hashable) -> bool:
        return key in self._sizes

    def touch(
        self, key: Hashable, size: int, name: str = "", alike: Collection[Hashable] = ()
    ) -> tuple[Hashable, ...]:
        """Notes a use of `key`, which takes `size` bytes and becomes resident. Returns the keys
        that must be evicted for it, in this order; never what is pinned. Where something must go,
        one of `alike` goes first, unless something else was not used during `STALE` misses.

        InputError when it is larger than the budget, NoRoom when what is pinned leaves too little;
        nothing is changed then.
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
                f"{name}: takes {size:,} bytes, what is in use takes {self.pinned_bytes:,} of "
                "the budget of "
                f"{self.budget_bytes:,.0f} bytes: wait until some is no longer in use, or "
                "raise the budget",
                self._what,
            )
        return chosen

    def _chosen(self, size: float, alike: frozenset[Hashable]) -> tuple[Hashable, ...]:
        """Returns the keys to evict to free so many bytes, see `touch`."""
        oldest = self.idle(size)
        if not oldest or self.misses - self._used[oldest[0]] >= STALE:
            return oldest
        first = self.idle(1, frozenset(self._sizes) - alike)
        return first + self.idle(size - sum(map(self._sizes.__getitem__, first)), frozenset(first))

    def idle(
        self, size: float = math.inf, spared: frozenset[Hashable] = frozenset()
    ) -> tuple[Hashable, ...]:
        """Returns the keys to evict, in this order, to free so many bytes: all that is neither
        pinned nor `spared` where that is not enough.
        """
        chosen: list[Hashable] = []
        spared = spared | frozenset(self._pins)
        while size > 0 and (victim := self._policy.victim(spared)) is not None:
            chosen.append(victim)
            spared = spared | {victim}
            size -= self._sizes[victim]
        return tuple(chosen)

    def evict(self, key: Hashable) -> None:
        """Counts an eviction for something else, and forgets the key."""
        self.evictions += 1
        self.forget(key)

    @property
    def pinned_bytes(self) -> int:
        return sum(self._sizes[pinned] for pinned in self._pins)

    def pin(self, key: Hashable) -> None:
        """Keeps what is resident until it is unpinned as often as it was pinned."""
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

    def forget(self, key: Hashable) -> None:
        """Removes what is no longer resident: it was dropped, or could not be loaded."""
        self._total -= self._sizes.pop(key)
        del self._used[key]
        self._policy.removed(key)
