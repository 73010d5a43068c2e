"""Decides which members of a pool hold which ControlNets: one rule, on a clock that is given. Must
not know processes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

# seconds that a queue must stay long: what is over before a replica could be loaded (seconds) is
# not worth one
PERIOD = 5.0
IDLE = 60.0  # seconds without work after which a replica is dropped

Queues = Mapping[str, Mapping[Hashable, float]]
"""By member, the seconds of work that wait there for each ControlNet."""


@dataclass(frozen=True, slots=True)
class Change:
    """Loads a ControlNet on a member, or drops it there."""

    kind: Literal["replicate", "drop"]
    control: Hashable
    member: str


@dataclass(slots=True)
class _Placed:
    """Tracks a ControlNet's replicas, the oldest first, with the times of their last work; and
    since when its queue is long.
    """

    used: dict[str, float] = field(default_factory=dict)
    long_since: float | None = None


class Replicas:
    """Places the ControlNets of a pool.

    A ControlNet is placed on the least loaded member when it is first asked for. While something
    waits for it and even the shortest queue among its members is longer than one of its
    evaluations, at every observation over PERIOD, it is replicated onto the least loaded other
    member, if the queue is shorter there. A replica without work for IDLE seconds is dropped, but
    never the last one.
    """

    def __init__(self, members: Iterable[str], clock: Callable[[], float]) -> None:
        self._members = list(members)
        self._clock = clock
        self._placed: dict[Hashable, _Placed] = {}

    def holders(self, control: Hashable) -> tuple[str, ...]:
        """Returns the members that hold a ControlNet, the one that has held it longest first."""
        placed = self._placed.get(control)
        return () if placed is None else tuple(placed.used)

    def route(self, control: Hashable, queues: Queues) -> str:
        """Returns the member that a new session goes to: of those that hold the ControlNet the one
        with the shortest queue in seconds.
        """
        placed = self._placed.setdefault(control, _Placed())
        member = self._least_loaded(placed.used or self._members, queues)
        placed.used[member] = self._clock()
        return member

    def note(self, control: Hashable, member: str) -> None:
        """Records a session of a ControlNet on a member that somebody else chose."""
        self._placed.setdefault(control, _Placed()).used[member] = self._clock()

    def observe(
        self, queues: Queues, evaluation_seconds: Mapping[Hashable, float]
    ) -> tuple[Change, ...]:
        """Returns the changes to make, taken as made; call `lost` for a member where one failed."""
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
        """Forgets a ControlNet on a member, or (None) all of them: the member died, or its memory
        was needed.
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
        """Replicates one ControlNet of a crowded member at a time, the one with most work waiting
        first: the others see whether that was enough.
        """
        changes: list[Change] = []
        settling: set[str] = set()  # members whose queues a change is about to alter
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
            # the oldest stays longest
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
    """Sums the seconds of work that wait at a member."""
    return sum(queues.get(member, {}).values())
