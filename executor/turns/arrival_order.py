"""Chooses the next task of a device: first come, first served, by the arrival of the runs that the
tasks belong to.

Must not know what is computed: tasks are any hashable names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from itertools import count
from typing import Generic, TypeVar

Task = TypeVar("Task", bound=Hashable)

# Seconds for which a device stays free for the next task of a run whose last task has ended, before
# tasks of later runs may use it; and before they may load models.
HOLD_S, LOADING_HOLD_S = 0.01, 0.25
# Weights of a waiting task stay resident for STAY times the duration of a switch before a later
# task may switch them, so switching there and back takes at most a quarter of the wait.
STAY = 8
MAX_ABSENT_S = 60.0  # a run without a task for this long is forgotten


class ArrivalOrder(Generic[Task]):
    """Orders tasks by the arrival of their runs. A later task may use the device only while no
    earlier one can: it waits for another device, or its run works on the host.

    Times are seconds on the caller's clock. `needs_switch(task)`: its weights are not resident.
    `loads(task)`: it may load models. Arrival 0 stands for a call outside runs, which goes first.
    """

    def __init__(self, needs_switch: Callable[[Task], bool], loads: Callable[[Task], bool]) -> None:
        self._needs_switch, self._loads = needs_switch, loads
        self._numbers = count()
        self._places: dict[Task, tuple[float, int]] = {}  # arrival of the run, then of the task
        self._worked: dict[Task, float] = {}  # end of the last unit of work
        # arrival of a run without a task here -> end of its last task
        self._absent: dict[float, float] = {}
        self._switch = 0.0  # seconds that the last switch took

    def join(self, task: Task, arrival: float) -> None:
        self._places[task] = arrival, next(self._numbers)
        self._absent.pop(arrival, None)

    def leave(self, task: Task, now: float) -> None:
        """Removes a task. Its run is expected to send another one until `ended` is called."""
        arrival, _ = self._places.pop(task)
        self._worked.pop(task, None)
        if arrival and all(other != arrival for other, _ in self._places.values()):
            self._absent = {
                run: since for run, since in self._absent.items() if now - since < MAX_ABSENT_S
            }
            self._absent[arrival] = now

    def ended(self, arrival: float) -> None:
        """Waits no longer for the tasks of a run."""
        self._absent.pop(arrival, None)

    def worked(self, task: Task, now: float, switch: float = 0.0) -> None:
        """Records the end of a unit of work. `switch`: its seconds for switching weights."""
        self._worked[task] = now
        if switch:
            self._switch = switch

    def ranked(self, tasks: Iterable[Task]) -> list[Task]:
        """Returns tasks in the order of their arrival."""
        return sorted(tasks, key=self._places.__getitem__)

    def choose(self, ready: Iterable[Task], now: float) -> tuple[Task | None, float]:
        """Returns the next task; or None, and the time at which one of the tasks may run."""
        earliest = float("inf")
        for task in self.ranked(ready):
            free = self._free(task, now)
            if free <= now:
                return task, now
            earliest = min(earliest, free)
        return None, earliest

    def _free(self, task: Task, now: float) -> float:
        """Returns the time at which no earlier run needs the device more than this task."""
        place, free = self._places[task], 0.0
        absent = [at for run, at in self._absent.items() if run < place[0]]
        if absent and now < (since := max(absent)) + LOADING_HOLD_S:
            free = since + (LOADING_HOLD_S if self._loads(task) else HOLD_S)
        if self._switch and self._needs_switch(task):
            for other, worked in self._worked.items():
                if self._places[other] < place and not self._needs_switch(other):
                    free = max(free, worked + STAY * self._switch)
        return free
