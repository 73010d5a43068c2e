"""Orders waiting jobs: lowest number first, and those of one number as they arrived. Must not know
disks and devices.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from katz_graph.errors import KatzError
from katz_graph.web.jobs.job import Job


class NotWaiting(KatzError):
    """A job cannot be moved: it does not wait, or the place does not exist."""


def _key(job: Job) -> tuple[float, int]:
    return job.number, job.order


class JobQueue:
    """Holds the waiting jobs in their order."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs)

    def __getitem__(self, place: int) -> Job:
        return self._jobs[place]

    def find(self, id: str) -> Job | None:
        return next((job for job in self._jobs if job.id == id), None)

    def ahead_of(self, number: float, order: int) -> Sequence[Job]:
        """Returns the jobs that run before one of this number and order."""
        return self._jobs[: bisect.bisect_right(self._jobs, (number, order), key=_key)]

    def front_number(self) -> float:
        """Returns a number that comes before all jobs."""
        return min(self._jobs[0].number if self._jobs else 0.0, 0.0) - 1.0

    def add(self, job: Job) -> None:
        """Inserts a job at the place of its number and order."""
        bisect.insort(self._jobs, job, key=_key)

    def remove(self, id: str) -> Job | None:
        """Removes a job and returns it; None when it does not wait."""
        found = self.find(id)
        if found is not None:
            self._jobs.remove(found)
        return found

    def take(self, fits: Callable[[Job], bool]) -> Job | None:
        """Takes the first job if it fits. Never a later one: none overtakes another."""
        return self._jobs.pop(0) if self._jobs and fits(self._jobs[0]) else None

    def place(self, moved: Iterable[Job]) -> None:
        """Gives jobs that still wait their new numbers and orders."""
        for new in moved:
            if (job := self.remove(new.id)) is not None:
                self.add(replace(job, number=new.number, order=new.order))

    def renumbered(self, id: str, number: float) -> Job:
        """Returns a job with another number, to be placed. NotWaiting when it does not wait."""
        return replace(self._waiting(id), number=number)

    def moved_before(self, id: str, other: str) -> list[Job]:
        """Returns a job moved right before another one, whose number it gets, and the others whose
        orders change by that; for `place`.

        The jobs of that number share out the orders that they have. Raises NotWaiting for a job
        that does not wait.
        """
        job, target = self._waiting(id), self._waiting(other)
        if job is target:
            return [job]
        group = [each for each in self._jobs if each.number == target.number and each is not job]
        orders = sorted(each.order for each in [*group, job])
        group.insert(group.index(target), replace(job, number=target.number))
        placed = [replace(each, order=order) for each, order in zip(group, orders, strict=True)]
        renewed = {each.id: each for each in placed}
        changed = [
            renewed[each.id]
            for each in self._jobs
            if each.id in renewed and each.id != id and renewed[each.id] != each
        ]
        return [renewed[id], *changed]

    def _waiting(self, id: str) -> Job:
        found = self.find(id)
        if found is None:
            raise NotWaiting(f"no job {id} waits; only jobs that wait can be moved")
        return found
