"""Orders waiting jobs: clients take turns, and each client's jobs run by number, then by arrival.
Must not know disks and devices.

Each address gets one turn per round, shared by the address's client ids. Clients choose their ids,
so a turn per id would let an address multiply its turns.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from katz_graph.core.errors import KatzError
from katz_graph.web.jobs.job import Job

Owner = tuple[str, str]
"""An address and a client id at that address."""


class NotWaiting(KatzError):
    """Reports a job that cannot be moved because it does not wait or the target position does not
    exist.
    """


def owner(origin: str, client: str | None) -> Owner:
    """Returns the key of a job's turn."""
    return origin, client or ""


def owner_of(job: Job) -> Owner:
    return owner(job.origin, job.client)


def _key(job: Job) -> tuple[float, int]:
    return job.number, job.order


class JobQueue:
    """Holds the waiting jobs in their order."""

    def __init__(self) -> None:
        # in the order of turns: addresses, and each address's clients with their sorted jobs
        self._turns: dict[str, dict[str, list[Job]]] = {}
        self._returned: dict[Owner, int] = {}  # clients with a returned job: when it was taken

    def __len__(self) -> int:
        return sum(map(len, self._lists()))

    def __iter__(self) -> Iterator[Job]:
        """Yields the jobs in the order in which they would run if no other arrived."""
        turns = [[iter(jobs) for jobs in clients.values()] for clients in self._turns.values()]
        while turns:
            clients = turns.pop(0)
            while clients:
                jobs = clients.pop(0)
                if (job := next(jobs, None)) is not None:
                    yield job
                    clients.append(jobs)
                    turns.append(clients)
                    break

    def find(self, id: str) -> Job | None:
        return next((job for jobs in self._lists() for job in jobs if job.id == id), None)

    def owners(self) -> dict[Owner, int]:
        """Counts each client's jobs."""
        return {
            (address, client): len(jobs)
            for address, clients in self._turns.items()
            for client, jobs in clients.items()
        }

    def ahead_of(self, new: Job) -> Sequence[Job]:
        """Returns the jobs that would run before a new one if no other arrived."""
        with_new = JobQueue()
        with_new._turns = {
            address: {client: list(jobs) for client, jobs in clients.items()}
            for address, clients in self._turns.items()
        }
        with_new.add(new)
        order = list(with_new)
        return order[: order.index(new)]

    def front(self, new: Job) -> Job:
        """Returns the job with a number and order that place it before its client's other jobs."""
        first = next((job for job in self._jobs(owner_of(new)) if job.id != new.id), None)
        number = min(first.number if first is not None else 0.0, 0.0) - 1.0
        if first is None or number < first.number:
            return replace(new, number=number)
        return replace(new, number=first.number, order=first.order - 1)  # no smaller number exists

    def add(self, job: Job) -> None:
        """Inserts a job at its place among its client's jobs. A new client's turn comes last."""
        address, client = owner_of(job)
        bisect.insort(self._turns.setdefault(address, {}).setdefault(client, []), job, key=_key)

    def put_back(self, job: Job, taken: int) -> None:
        """Reinserts a job that was taken and did not end. Its client has the next turn; of several
        such clients, the one with the job that was taken first. `taken` numbers the taken jobs.
        """
        self.add(job)
        key = owner_of(job)
        self._returned[key] = min(taken, self._returned.get(key, taken))
        turns: dict[str, dict[str, list[Job]]] = {}
        for address, client in sorted(
            self.owners(), key=lambda one: self._returned.get(one, math.inf)
        ):
            turns.setdefault(address, {})[client] = self._turns[address][client]
        self._turns = turns

    def remove(self, id: str) -> Job | None:
        """Removes and returns a job; returns None if it does not wait."""
        found = self.find(id)
        if found is not None:
            self._drop(found)
        return found

    def take(self, fits: Callable[[Job], bool]) -> Job | None:
        """Takes the next job if it fits, and moves its client to the end of the round. Never takes
        a later job, so no job overtakes another.
        """
        job = next(iter(self), None)
        if job is None or not fits(job):
            return None
        address, client = owner_of(job)
        self._returned.pop((address, client), None)
        clients = self._turns.pop(address)
        clients[client] = clients.pop(client)
        self._turns[address] = clients
        self._drop(job)
        return job

    def place(self, moved: Iterable[Job]) -> None:
        """Updates the numbers and orders of jobs that still wait."""
        for new in moved:
            if (job := self.find(new.id)) is not None:
                jobs = self._jobs(owner_of(job))
                jobs.remove(job)
                bisect.insort(jobs, replace(job, number=new.number, order=new.order), key=_key)

    def renumbered(self, id: str, number: float) -> Job:
        """Returns the job with a new number, for `place`. Raises NotWaiting if it does not wait."""
        return replace(self._waiting(id), number=number)

    def moved_to_front(self, id: str) -> Job:
        """Returns the job placed before its client's other jobs, for `place`. Raises NotWaiting if
        it does not wait.
        """
        return self.front(self._waiting(id))

    def moved_before(self, id: str, other: str) -> list[Job]:
        """Returns the job placed directly before another one of its client, with that job's number,
        and the jobs that get other orders as a result, for `place`.

        The jobs with that number exchange their orders. Raises NotWaiting if one of the two jobs
        does not wait or they belong to different clients.
        """
        job, target = self._waiting(id), self._waiting(other)
        if job is target:
            return [job]
        if owner_of(job) != owner_of(target):
            raise NotWaiting(
                f"job {other} belongs to another client: a job can only move among the jobs of "
                f"its own client"
            )
        jobs = self._jobs(owner_of(job))
        group = [each for each in jobs if each.number == target.number and each is not job]
        orders = sorted(each.order for each in [*group, job])
        group.insert(group.index(target), replace(job, number=target.number))
        placed = [replace(each, order=order) for each, order in zip(group, orders, strict=True)]
        renewed = {each.id: each for each in placed}
        changed = [
            renewed[each.id]
            for each in jobs
            if each.id in renewed and each.id != id and renewed[each.id] != each
        ]
        return [renewed[id], *changed]

    def _lists(self) -> Iterator[list[Job]]:
        for clients in self._turns.values():
            yield from clients.values()

    def _jobs(self, submitter: Owner) -> list[Job]:
        address, client = submitter
        return self._turns.get(address, {}).get(client, [])

    def _drop(self, job: Job) -> None:
        address, client = owner_of(job)
        clients = self._turns[address]
        clients[client].remove(job)
        if not clients[client]:
            del clients[client]
            self._returned.pop((address, client), None)
        if not clients:
            del self._turns[address]

    def _waiting(self, id: str) -> Job:
        found = self.find(id)
        if found is None:
            raise NotWaiting(f"job {id} is not waiting; only waiting jobs can be moved")
        return found
