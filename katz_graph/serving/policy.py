"""Orders requests on a device, and decides which of them share a call.

Requests with a due time that they can still meet come first, the earliest due time in front
(Liu and Layland, "Scheduling algorithms for multiprogramming in a hard-real-time environment",
1973). Then come requests without a due time, by equal shares of clients (Goyal, Vin and Cheng,
"Start-time fair queueing", 1996); a tenth of the time is reserved for them. Late requests come
last.

Must not know what is computed: tasks are any hashable names. No clock, no number and no prediction
raises an error: an unusable prediction counts as 0 seconds, so its task counts as on time.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from operator import attrgetter
from typing import Generic, TypeVar

Task = TypeVar("Task", bound=Hashable)

RESERVED_SHARE = 0.1  # of the time, for tasks without a due time while others have one
MAX_OWED_S = 10.0  # seconds that the account of the reserved time may be ahead or behind
# of a task's seconds, which it must save by joining calls, and of its call's seconds at most
MIN_SAVED_SHARE, MOST_SAVED_SHARE = 0.1, 0.2
UNKNOWN_COST_S = 1.0  # seconds for which a client is charged if its request has no prediction
MAX_RUNS = 1024  # with a stored tag, in addition to those that wait


def can_meet(due: float, remaining: float | None, now: float) -> bool:
    """Returns whether a request that needs `remaining` more seconds can end until `due`. Without a
    prediction (None) it can if `due` has not passed.
    """
    return now + usable(remaining) <= due


def usable(seconds: float | None) -> float:
    """Returns a prediction in seconds, or 0 if it is unknown, negative, infinite or NaN."""
    return seconds if seconds is not None and 0 < seconds < math.inf else 0.0


class ReservedTime:
    """Accounts for the time that tasks without a due time get while others meet due times."""

    def __init__(self) -> None:
        self._owed = 0.0  # seconds
        self.competing = False  # whether both kinds of tasks waited at the last decision

    def comes_first(self, with_due: bool, without_due: bool) -> bool:
        """Decides whether a task without a due time comes next although others can meet theirs:
        while tasks without one have got less than their share. Arguments: which kinds wait.
        """
        self.competing = with_due and without_due
        return self.competing and self._owed > 1e-9

    @property
    def lasts(self) -> float:
        """Returns the seconds of work after which another kind of task may come next."""
        if not self.competing:
            return math.inf
        return max(self._owed / (1 - RESERVED_SHARE), -self._owed / RESERVED_SHARE)

    def charge(self, with_due: float, without_due: float) -> None:
        """Records the seconds that follow a decision. They count if both kinds of tasks waited."""
        if not self.competing:
            return
        owed = RESERVED_SHARE * usable(with_due) - (1 - RESERVED_SHARE) * usable(without_due)
        self._owed = min(max(self._owed + owed, -MAX_OWED_S), MAX_OWED_S)


@dataclass(slots=True, eq=False)
class _Entry(Generic[Task]):
    task: Task
    arrival: float
    due: float  # inf: none
    client: str
    remaining: float
    rows: int
    seconds_after: float
    whole: float  # largest `remaining` until now: all seconds of the run
    # orders tasks with a due time by it, others by tag; equal ones by arrival
    key: tuple[float, float, int]

    def on_time(self, now: float) -> bool:
        return self.due < math.inf and can_meet(self.due, self.remaining, now)

    @property
    def least_saved(self) -> float:
        """Returns the share of its call's seconds that the task must save by joining another: so
        much that this is MIN_SAVED_SHARE of all its seconds.
        """
        calls = self.whole - self.seconds_after
        if calls <= 0:
            return MIN_SAVED_SHARE
        return min(MIN_SAVED_SHARE * self.whole / calls, MOST_SAVED_SHARE)


_by_key = attrgetter("key")
_by_arrival = attrgetter("arrival", "key")


class ServingPolicy(Generic[Task]):
    """Orders the tasks of one device. Times are seconds on the caller's clock.

    Tasks of one run have the same `arrival` and keep the run's place. Arrival 0 stands for a call
    outside runs, which goes first.

    A run without a due time gets a tag when its first task joins: the virtual time, or, if it is
    later, the tag of its client's previous run plus that run's seconds. The smallest tag goes
    first. So a run keeps the device once it has started, a client's single run starts within one
    round of clients, and the runs of one client stay in the order of arrival.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._entries: dict[Task, _Entry[Task]] = {}
        self._due: list[_Entry[Task]] = []  # those with a due time, by key
        self._without_due: dict[Task, _Entry[Task]] = {}
        self._tags: dict[float, float] = {}  # of runs without a due time, by arrival
        self._next_tags: dict[str, float] = {}  # of each client's next run
        self._virtual = 0.0  # seconds of service per client
        self._reserved = ReservedTime()

    def __len__(self) -> int:
        return len(self._entries)

    def join(
        self,
        task: Task,
        arrival: float,
        due: float = math.inf,
        client: str = "",
        remaining: float | None = None,
        rows: int = 1,
        seconds_after: float = 0.0,
    ) -> None:
        """Adds a task. `due`: inf for none. `remaining`: seconds that the run needs if it runs
        alone; None if unknown. `rows`: of its calls. `seconds_after`: the part of `remaining` that
        follows the task's calls, which no other task can share.
        """
        arrival = math.inf if math.isnan(arrival) else arrival
        due = math.inf if math.isnan(due) else due
        seconds, without_due = usable(remaining), due == math.inf
        first = self._tag(arrival, client, seconds) if arrival and without_due else due
        key = first, arrival, next(self._numbers)
        rest = usable(seconds_after)
        entry = _Entry(task, arrival, due, client, seconds, rows, rest, seconds, key)
        self._entries[task] = entry
        if arrival and without_due:
            self._without_due[task] = entry
        elif arrival:
            insort(self._due, entry, key=_by_key)

    def leave(self, task: Task) -> None:
        """Removes a task. Its run keeps its place for other tasks until `ended` is called."""
        entry = self._entries.pop(task)
        if self._without_due.pop(task, None) is None and entry.arrival:
            self._due.remove(entry)

    def ended(self, arrival: float) -> None:
        """Forgets the place of a run that sends no more tasks."""
        self._tags.pop(arrival, None)

    def predict(self, task: Task, remaining: float | None, rows: int) -> None:
        """Updates the seconds that a task's run still needs alone, and the rows of its calls."""
        entry = self._entries[task]
        entry.remaining, entry.rows = usable(remaining), rows
        entry.whole = max(entry.whole, entry.remaining)

    def charge(self, members: Collection[Task], seconds: float) -> None:
        """Charges the members of a call for its seconds, each by its share of the rows. Call it
        before a member leaves.
        """
        if not self._reserved.competing:
            return
        entries = [self._entries[task] for task in members]
        row = usable(seconds) / max(sum(entry.rows for entry in entries), 1)
        self._reserved.charge(
            row * sum(entry.rows for entry in entries if entry.due < math.inf),
            row * sum(entry.rows for entry in entries if entry.task in self._without_due),
        )

    @property
    def lasts(self) -> float:
        """Returns the seconds of work after which the reserved time changes the last order."""
        return self._reserved.lasts

    def ranked(self, ready: Iterable[Task], now: float) -> list[Task]:
        """Returns the tasks in the order in which they may lead the next call."""
        outside, on_time, without_due, late = self._by_kind(ready, now)
        if self._reserved.comes_first(bool(on_time), bool(without_due)):
            on_time, without_due = without_due, on_time
        return [entry.task for entry in (*outside, *on_time, *without_due, *late)]

    def joined(
        self,
        leader: Task,
        candidates: Iterable[Task],
        seconds_of: Callable[[int], float | None],
        now: float,
        max_rows: int,
    ) -> list[Task]:
        """Returns the candidates that join the leader's next call: those that can meet their due
        times first, then those without one, then late ones.

        `candidates`: ready tasks whose next call may be the same call. `seconds_of(rows)`:
        predicted seconds of that call, at most `max_rows` rows; None if unknown, and then no task
        joins.

        A candidate joins if all its calls together would save a tenth of its seconds, and if no
        other task becomes late by it. Tasks with a due time that are on time are checked as if they
        ran one by one in the order of due times, after this call. A late one joins no call of a
        leader that is on time while others that are on time wait: it would use their time.
        """
        lead = self._entries[leader]
        group = _Group(lead, seconds_of, now, max_rows)
        if group.full:
            return []
        offered = {task: self._entries[task] for task in candidates if task != leader}
        # while other tasks wait, a part of the time is reserved for them
        stretch = 1 / (1 - RESERVED_SHARE) if self._without_due else 1.0
        alone = ahead = group.seconds
        others_wait = False
        for entry in self._due:
            if not entry.on_time(now):
                continue
            joins = entry.task in offered and group.offer(offered.pop(entry.task))
            others_wait = others_wait or not (joins or entry is lead)
            if group.full:
                return group.joined
            ahead += entry.remaining - (alone if entry is lead else 0.0)
            group.protect(entry.due - now - stretch * ahead)
        outside, on_time, without_due, late = self._by_kind(offered, now)
        if others_wait and lead.on_time(now):
            late = []
        for entry in chain(outside, on_time, without_due, late):
            group.offer(entry)
            if group.full:
                break
        return group.joined

    def _by_kind(
        self, tasks: Iterable[Task], now: float
    ) -> tuple[list[_Entry[Task]], list[_Entry[Task]], list[_Entry[Task]], list[_Entry[Task]]]:
        """Returns the tasks outside runs, those that can meet their due times, those without one,
        and the late ones, each in its order.
        """
        outside: list[_Entry[Task]] = []
        on_time: list[_Entry[Task]] = []
        without_due: list[_Entry[Task]] = []
        late: list[_Entry[Task]] = []
        for task in tasks:
            entry = self._entries[task]
            if not entry.arrival:
                outside.append(entry)
            elif entry.due == math.inf:
                without_due.append(entry)
            elif entry.on_time(now):
                on_time.append(entry)
            else:
                late.append(entry)
        for entries in (outside, on_time, without_due):
            entries.sort(key=_by_key)
        late.sort(key=_by_arrival)
        return outside, on_time, without_due, late

    def _tag(self, arrival: float, client: str, seconds: float) -> float:
        """Returns the tag of a run without a due time: the remembered one, or a new one."""
        if arrival in self._tags:
            return self._tags[arrival]
        waiting = self._without_due.values()
        if waiting:
            self._virtual = max(self._virtual, min(entry.key[0] for entry in waiting))
        else:
            self._virtual = max([self._virtual, *self._tags.values()])
            self._next_tags.clear()
        tag = max(self._virtual, self._next_tags.get(client, 0.0))
        self._next_tags = {
            other: next_tag
            for other, next_tag in self._next_tags.items()
            if next_tag > self._virtual
        }
        self._next_tags[client] = tag + (seconds or UNKNOWN_COST_S)
        # a run may reach this device after a later one of its client
        later = (one.key[0] for one in waiting if one.client == client and one.arrival > arrival)
        tag = self._tags[arrival] = min([tag, *later])
        while len(self._tags) > MAX_RUNS + len(waiting):
            del self._tags[next(iter(self._tags))]
        return tag


class _Group(Generic[Task]):
    """The members of a call, and the seconds by which the call may still grow."""

    def __init__(
        self,
        lead: _Entry[Task],
        seconds_of: Callable[[int], float | None],
        now: float,
        max_rows: int,
    ) -> None:
        self.joined: list[Task] = []
        self._seconds_of, self._now, self._max_rows = cache(seconds_of), now, max_rows
        self._rows = lead.rows
        self.seconds = usable(self._seconds_of(lead.rows))  # of the call
        self._added = 0.0  # seconds by members after the first
        self._saved = 0.0  # seconds that members with a due time need no more afterwards
        self._slack = math.inf  # of protected tasks, without `_added`
        self._limit = math.inf  # seconds of the call after which a member would be late
        self._limit_by(lead, self.seconds)

    @property
    def full(self) -> bool:
        return self._rows >= self._max_rows or not self.seconds

    def offer(self, entry: _Entry[Task]) -> bool:
        """Adds a member if that saves time and makes no task late; returns whether it was added."""
        rows = self._rows + entry.rows
        if rows > self._max_rows:
            return False
        alone, together = self._seconds_of(entry.rows), self._seconds_of(rows)
        if alone is None or together is None:
            return False
        added = max(together - self.seconds, 0.0)
        if not (
            self._added + added <= self._slack
            and together <= self._limit
            and alone - added >= entry.least_saved * alone
        ):
            return False
        self._rows, self.seconds = rows, max(together, self.seconds)
        self._added += added
        if entry.on_time(self._now):
            self._saved += alone
        self._limit_by(entry, alone)
        self.joined.append(entry.task)
        return True

    def protect(self, slack: float) -> None:
        """Protects a task that would be on time by `slack` seconds if the leader ran alone."""
        if slack >= 0:
            self._slack = min(self._slack, slack + self._saved)

    def _limit_by(self, entry: _Entry[Task], alone: float) -> None:
        """Protects a member that is not late already by waiting for the others."""
        limit = entry.due - self._now - entry.remaining + alone
        if entry.on_time(self._now) and limit >= self.seconds:
            self._limit = min(self._limit, limit)
