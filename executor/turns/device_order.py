"""Chooses the next task of a device in the order of `serving.policy`. Keeps the device free for the
next task of a run, and weights resident for a task that waits.

Must not know what is computed: tasks are any hashable names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from katz_graph.serving.policy import ServingPolicy

Task = TypeVar("Task", bound=Hashable)

# Seconds for which a device stays free for the next task of a run whose last task has ended, before
# tasks of later runs may use it; and before they may load models.
HOLD_S, LOADING_HOLD_S = 0.01, 0.25
# Weights of a waiting task stay resident for STAY times the duration of a switch before a later
# task may switch them, so switching there and back takes at most a quarter of the wait.
STAY = 8
MAX_ABSENT_S = 60.0  # a run without a task for this long is forgotten


@dataclass(frozen=True, slots=True)
class Place:
    """Places a run among others. `arrival`: seconds on the driver's clock, 0 for a call outside
    runs; `due`: seconds on the caller's clock, inf for none; `client` gets an equal share.
    `seconds_after`: of the run after the task.
    """

    arrival: float = 0.0
    due: float = math.inf
    client: str = ""
    seconds_after: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class _Absent:
    """Stands for a run without a task here; `since`: the end of its last one."""

    place: Place
    since: float


class DeviceOrder(Generic[Task]):
    """Orders tasks by the policy. A later task may use the device only while no earlier one can:
    it waits for another device, or its run works on the host.

    Times are seconds on the caller's clock. `needs_switch(task)`: its weights are not resident.
    `loads(task)`: it may load models.
    """

    def __init__(self, needs_switch: Callable[[Task], bool], loads: Callable[[Task], bool]) -> None:
        self._needs_switch, self._loads = needs_switch, loads
        self._policy: ServingPolicy[Task | _Absent] = ServingPolicy()
        self._places: dict[Task, Place] = {}
        self._worked: dict[Task, float] = {}  # end of the last unit of work
        self._absent: dict[float, _Absent] = {}  # by arrival
        self._switch = 0.0  # seconds that the last switch took

    def join(self, task: Task, place: Place, remaining: float = 0.0, rows: int = 1) -> None:
        """Adds a task. `remaining`, `rows`: as in `predict`."""
        self._places[task] = place
        rest = remaining + place.seconds_after
        self._policy.join(
            task, place.arrival, place.due, place.client, rest, rows, place.seconds_after
        )
        self._forget(place.arrival)

    def leave(self, task: Task, now: float) -> None:
        """Removes a task. Its run is expected to send another one until `ended` is called."""
        place = self._places.pop(task)
        self._worked.pop(task, None)
        if place.arrival and all(other.arrival != place.arrival for other in self._places.values()):
            for run in list(self._absent.values()):
                if now - run.since >= MAX_ABSENT_S:
                    self.ended(run.place.arrival)
            absent = self._absent[place.arrival] = _Absent(place, now)
            self._policy.join(absent, place.arrival, place.due, place.client)
        self._policy.leave(task)

    def ended(self, arrival: float) -> None:
        """Waits no longer for the tasks of a run."""
        self._forget(arrival)
        self._policy.ended(arrival)

    def _forget(self, arrival: float) -> None:
        if (absent := self._absent.pop(arrival, None)) is not None:
            self._policy.leave(absent)

    def predict(self, task: Task, remaining: float, rows: int) -> None:
        """Updates the seconds that a task still needs alone, and the rows of its calls."""
        self._policy.predict(task, remaining + self._places[task].seconds_after, rows)

    def worked(
        self, tasks: Collection[Task], now: float, seconds: float = 0.0, switch: float = 0.0
    ) -> None:
        """Records the end of a unit of work of one task, or of several that shared calls, and its
        seconds. `switch`: seconds for switching weights.
        """
        self._policy.charge(tasks, seconds)
        self._worked |= dict.fromkeys(tasks, now)
        if switch:
            self._switch = switch

    def by_row_pays(
        self,
        by_row: float,
        apart: Sequence[float],
        units: float,
        needs_switch: Callable[[bool], bool],
    ) -> bool:
        """Returns whether tasks take less time with their weight sets by row than with merged ones.
        `by_row`: seconds of a unit of all tasks; `apart`: of the tasks of each set; `units`: left;
        `needs_switch(by_row)`: the weights for that are not resident.
        """
        # sets that alternate stay for at least STAY switches
        merged = sum(apart) * (1.0 + 1.0 / STAY if len(apart) > 1 else 1.0)
        return units * by_row + self._switch * needs_switch(True) < (
            units * merged + self._switch * needs_switch(False)
        )

    def ranked(self, tasks: Iterable[Task], now: float) -> list[Task]:
        """Returns tasks in their order."""
        return [one for one in self._policy.ranked(tasks, now) if not isinstance(one, _Absent)]

    def joined(
        self,
        leader: Task,
        candidates: Iterable[Task],
        seconds_of: Callable[[int], float | None],
        now: float,
        max_rows: int,
    ) -> list[Task]:
        """Returns the candidates that share the leader's next calls (`ServingPolicy.joined`)."""
        joined = self._policy.joined(leader, candidates, seconds_of, now, max_rows)
        return [one for one in joined if not isinstance(one, _Absent)]

    def choose(self, ready: Iterable[Task], now: float) -> tuple[Task | None, float]:
        """Returns the next task; or None, and the time at which one of the tasks may run."""
        earliest = math.inf
        able = set(ready)
        absent = -math.inf  # end of the last task of an earlier run without a task here
        stays = 0.0  # time until which weights of earlier tasks stay resident
        for task in self._policy.ranked([*self._absent.values(), *self._places], now):
            if isinstance(task, _Absent):
                absent = max(absent, task.since)
                continue
            if task in able:
                free = self._free(task, now, absent, stays)
                if free <= now:
                    return task, now
                earliest = min(earliest, free)
            if self._switch and task in self._worked and not self._needs_switch(task):
                stays = max(stays, self._worked[task] + STAY * self._switch)
        return None, earliest

    def _free(self, task: Task, now: float, absent: float, stays: float) -> float:
        """Returns the time at which no earlier run needs the device more than this task."""
        free = 0.0
        if now < absent + LOADING_HOLD_S:
            free = absent + (LOADING_HOLD_S if self._loads(task) else HOLD_S)
        if stays > free and self._needs_switch(task):
            free = stays
        return free
