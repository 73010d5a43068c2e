"""Decides which pool members hold which ControlNets, on an injected clock. Knows no processes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

# seconds for which a queue must stay long; loading a replica takes seconds, too long for a
# shorter peak
PERIOD = 5.0
IDLE = 60.0  # idle seconds after which a replica is dropped

Queues = Mapping[str, Mapping[Hashable, float]]
"""By member: the queued work of each ControlNet, in seconds."""


@dataclass(frozen=True, slots=True)
class Change:
    """Describes a change: a ControlNet to load on a member, or to drop."""

    kind: Literal["replicate", "drop"]
    control: Hashable
    member: str


@dataclass(slots=True)
class _Placed:
    """Tracks the replicas of a ControlNet: when each member last used its replica, oldest replica
    first, and since when the queue is long.
    """

    used: dict[str, float] = field(default_factory=dict)
    long_since: float | None = None


class Replicas:
    """Places ControlNets on the members of a pool.

    The first request for a ControlNet places it on the least loaded member. A ControlNet's queue is
    long if it has work and even the ControlNet's least loaded member has more work than one
    evaluation takes. If the queue is long at every observation over PERIOD, the ControlNet is
    replicated onto the least loaded other member, if that has less work. A replica without work for
    IDLE seconds is dropped, unless it is the last.
    """

    def __init__(self, members: Iterable[str], clock: Callable[[], float]) -> None:
        self._members = list(members)
        self._clock = clock
        self._placed: dict[Hashable, _Placed] = {}

    def holders(self, control: Hashable) -> tuple[str, ...]:
        """Returns the members that hold a ControlNet, oldest replica first."""
        placed = self._placed.get(control)
        return () if placed is None else tuple(placed.used)

    def route(self, control: Hashable, queues: Queues) -> str:
        """Returns the member for a new request's ControlNet operations: the least loaded holder, or
        the least loaded member if none holds the ControlNet. Load is queued work in seconds.
        """
        placed = self._placed.setdefault(control, _Placed())
        member = self._least_loaded(placed.used or self._members, queues)
        placed.used[member] = self._clock()
        return member

    def note(self, control: Hashable, member: str) -> None:
        """Records the use of a ControlNet on a member that the planner chose."""
        self._placed.setdefault(control, _Placed()).used[member] = self._clock()

    def observe(
        self, queues: Queues, evaluation_seconds: Mapping[Hashable, float]
    ) -> tuple[Change, ...]:
        """Returns the changes to make and records them as made. If a change fails on a member, call
        `lost`.
        """
        now = self._clock()
        for control, placed in self._placed.items():
            for member in placed.used:
                if queues.get(member, {}).get(control, 0.0) > 0.0:
                    placed.used[member] = now
            if not self._is_long(control, queues, evaluation_seconds):
                placed.long_since = None
            elif placed.long_since is None:
                placed.long_since = now
        return (*self._replicated(queues, now), *self._dropped(now))

    def lost(self, member: str, control: Hashable | None = None) -> None:
        """Forgets a ControlNet on a member, or all of them (None), after the member died or
        released the memory.
        """
        for name in [control] if control is not None else list(self._placed):
            if name in self._placed:
                self._placed[name].used.pop(member, None)
                if not self._placed[name].used:
                    del self._placed[name]

    def _is_long(
        self, control: Hashable, queues: Queues, evaluation_seconds: Mapping[Hashable, float]
    ) -> bool:
        holders = self._placed[control].used
        waits = any(queues.get(member, {}).get(control, 0.0) > 0.0 for member in holders)
        return (
            waits and min(_load(member, queues) for member in holders) > evaluation_seconds[control]
        )

    def _replicated(self, queues: Queues, now: float) -> list[Change]:
        """Replicates at most one ControlNet per overloaded member: the one with the most queued
        work. Others wait for the next period, because one replica may suffice.
        """
        changes: list[Change] = []
        settling: set[str] = set()  # members whose queues change in this round
        for control in sorted(self._placed, key=lambda control: -self._waiting(control, queues)):
            placed = self._placed[control]
            if placed.long_since is None or now - placed.long_since < PERIOD:
                continue
            if settling.isdisjoint(placed.used):
                others = [
                    member
                    for member in self._members
                    if member not in placed.used and member not in settling
                ]
                target = self._least_loaded(others, queues) if others else None
                if target is None or _load(target, queues) >= min(
                    _load(member, queues) for member in placed.used
                ):
                    continue
                settling |= {*placed.used, target}
                placed.used[target] = now
                changes.append(Change("replicate", control, target))
            placed.long_since = now
        return changes

    def _dropped(self, now: float) -> list[Change]:
        changes = []
        for control, placed in self._placed.items():
            # newest first, so that the oldest replica stays
            for member in [member for member, used in placed.used.items() if now - used >= IDLE][
                ::-1
            ]:
                if len(placed.used) > 1:
                    del placed.used[member]
                    changes.append(Change("drop", control, member))
        return changes

    def _waiting(self, control: Hashable, queues: Queues) -> float:
        return sum(
            queues.get(member, {}).get(control, 0.0) for member in self._placed[control].used
        )

    def _least_loaded(self, members: Iterable[str], queues: Queues) -> str:
        return min(members, key=lambda member: _load(member, queues))


def _load(member: str, queues: Queues) -> float:
    """Sums the queued work of a member, in seconds."""
    return sum(queues.get(member, {}).values())
