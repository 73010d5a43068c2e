"""Orders waiting jobs. Must not know disks and devices.

Jobs that can meet their due times come first, the earliest due time in front. Of jobs without a due
time, clients take turns, and each client's jobs run by number, then by arrival. Late jobs come last
(`katz_graph.serving.policy`). A job that its client moved before earlier ones stays before them.

Each address gets one turn per round, shared by the address's client ids. Clients choose their ids,
so a turn per id would let an address multiply its turns.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from katz_graph.core.errors import KatzError
from katz_graph.serving.policy import UNKNOWN_COST_S, ReservedTime, can_meet
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


ON_TIME, WITHOUT_DUE, LATE = range(3)


def _urgency(job: Job, seconds: float | None, now: float) -> tuple[int, float]:
    """Returns a sort key: the kind of a job, then its due time or, if it is late, its arrival.
    `seconds`: predicted for the job.
    """
    if job.due is None:
        return WITHOUT_DUE, 0.0
    if can_meet(job.due, seconds, now):
        return ON_TIME, job.due
    return LATE, job.created


def _urgencies(jobs: Sequence[Job], own: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Returns the sort keys of a client's jobs, which are sorted by number, from the keys that each
    would have if none had been moved. A job that was moved before earlier ones is as urgent as the
    most urgent of these.
    """
    if all(first.created <= second.created for first, second in itertools.pairwise(jobs)):
        return own
    # arrivals of later jobs in `jobs` in ascending order, and their keys, each the most urgent of
    # those up to this arrival
    arrivals, keys = list[float](), list[tuple[int, float]]()
    for place in reversed(range(len(jobs))):
        at = bisect.bisect_left(arrivals, jobs[place].created)
        if at:
            own[place] = min(own[place], keys[at - 1])
        if not at or own[place] < keys[at - 1]:
            end = next((n for n in range(at, len(keys)) if keys[n] < own[place]), len(keys))
            arrivals[at:end], keys[at:end] = [jobs[place].created], [own[place]]
    return own


def _in_turns(turns: Mapping[str, Mapping[str, list[Job]]]) -> Iterator[Job]:
    """Yields the jobs of clients that take turns: addresses, and clients of each address."""
    waiting = [[iter(jobs) for jobs in clients.values()] for clients in turns.values()]
    while waiting:
        clients = waiting.pop(0)
        while clients:
            jobs = clients.pop(0)
            if (job := next(jobs, None)) is not None:
                yield job
                clients.append(jobs)
                waiting.append(clients)
                break


class JobQueue:
    """Holds the waiting jobs in their order. `clock` returns seconds since the epoch, `predicted`
    the seconds that a job will take, as known now.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        predicted: Callable[[Job], float | None] = lambda job: job.predicted,
    ) -> None:
        self._clock, self._predicted = clock, predicted
        self._reserved = ReservedTime()
        # in the order of turns: addresses, and each address's clients with their sorted jobs
        self._turns: dict[str, dict[str, list[Job]]] = {}
        self._returned: dict[Owner, int] = {}  # clients with a returned job: when it was taken

    def __len__(self) -> int:
        return sum(map(len, self._lists()))

    def __iter__(self) -> Iterator[Job]:
        """Yields the jobs in the order in which they would run if no other arrived, without the
        tenth of the time that `take` reserves for jobs without a due time.
        """
        yield from itertools.chain.from_iterable(self._by_kind())

    def _by_kind(self) -> tuple[list[Job], list[Job], list[Job]]:
        """Returns the jobs that can meet their due times, those without one, and the late ones,
        each in its order.
        """
        if all(job.due is None for jobs in self._lists() for job in jobs):
            return [], list(_in_turns(self._turns)), []
        now = self._clock()
        urgent = list[tuple[tuple[int, float], Job]]()
        others = dict[str, dict[str, list[Job]]]()
        for address, clients in self._turns.items():
            for client, jobs in clients.items():
                own = [_urgency(job, self._predicted(job), now) for job in jobs]
                for key, job in zip(_urgencies(jobs, own), jobs, strict=True):
                    if key[0] == WITHOUT_DUE:
                        others.setdefault(address, {}).setdefault(client, []).append(job)
                    else:
                        urgent.append((key, job))
        urgent.sort(key=lambda one: one[0])
        on_time, late = (
            [job for (kind, _), job in urgent if kind == wanted] for wanted in (ON_TIME, LATE)
        )
        return on_time, list(_in_turns(others)), late

    def find(self, id: str) -> Job | None:
        return next((job for jobs in self._lists() for job in jobs if job.id == id), None)

    def owners(self) -> dict[Owner, int]:
        """Counts each client's jobs."""
        return {
            (address, client): len(jobs)
            for address, clients in self._turns.items()
            for client, jobs in clients.items()
        }

    def with_new(self, new: Job) -> Sequence[Job]:
        """Returns the order in which a new job and the waiting ones would run."""
        with_new = JobQueue(self._clock, self._predicted)
        with_new._turns = {
            address: {client: list(jobs) for client, jobs in clients.items()}
            for address, clients in self._turns.items()
        }
        with_new.add(new)
        return list(with_new)

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
        """Takes the next job if it fits. If the job is late or has no due time, its client moves to
        the end of the round. Never takes a later job, so no job overtakes another.
        """
        on_time, without_due, late = self._by_kind()
        if self._reserved.comes_first(bool(on_time), bool(without_due)):
            on_time = []
        job = next(itertools.chain(on_time, without_due, late), None)
        if job is None or not fits(job):
            return None
        seconds = self._predicted(job) or UNKNOWN_COST_S
        self._reserved.charge(*((seconds, 0.0) if on_time else (0.0, seconds)))
        address, client = owner_of(job)
        self._returned.pop((address, client), None)
        if not on_time:
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
