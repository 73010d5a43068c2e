"""Simulates requests on devices: arrivals, a policy, and the seconds of calls. Must not know
models.

A device takes a request when it is idle, and keeps it until its end. Between two calls of a
request, the device may serve others.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from katz_graph.serving.policy import ServingPolicy

SecondsOf = Callable[[Hashable, int], float]
"""Returns the seconds of a call by its key and number of rows."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a request. Calls of equal keys of several requests may be one call."""

    key: Hashable
    number: int
    rows: int = 1


@dataclass(frozen=True, slots=True)
class Request:
    """A request: its arrival and due time in seconds, and its calls."""

    arrival: float
    calls: Calls
    due: float = math.inf
    client: str = ""
    # predicted seconds, relative to the true ones
    prediction: float = 1.0

    def alone(self, seconds_of: SecondsOf) -> float:
        """Returns the seconds of the request if it runs alone."""
        return self.calls.number * seconds_of(self.calls.key, self.calls.rows)


class Order(Protocol):
    """Orders the tasks of devices, as `ServingPolicy` does. Tasks are numbers of requests."""

    def join(
        self,
        task: int,
        arrival: float,
        due: float = ...,
        client: str = ...,
        remaining: float | None = ...,
        rows: int = ...,
    ) -> None: ...

    def leave(self, task: int) -> None: ...

    def predict(self, task: int, remaining: float | None, rows: int) -> None: ...

    def charge(self, members: Collection[int], seconds: float) -> None: ...

    def ranked(self, ready: Iterable[int], now: float) -> list[int]: ...

    def joined(
        self,
        leader: int,
        candidates: Iterable[int],
        seconds_of: Callable[[int], float | None],
        now: float,
        max_rows: int,
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """The ends of requests, and the seconds for which devices worked for each client."""

    requests: Sequence[Request]
    ends: Mapping[int, float]  # by number of the request
    seconds: Mapping[str, float]  # by client; members of a call pay by their rows

    @property
    def on_time(self) -> float:
        """Returns the share of the requests with due times that ended in time."""
        due = [number for number, one in enumerate(self.requests) if one.due < math.inf]
        met = sum(self.ends.get(number, math.inf) <= self.requests[number].due for number in due)
        return met / len(due) if due else 1.0


@dataclass(slots=True, eq=False)
class _Progress:
    """The rest of a request on its device."""

    left: int  # calls
    remaining: float  # seconds alone
    device: int | None = None
    running: bool = False


def simulate(
    requests: Sequence[Request],
    devices: int,
    seconds_of: SecondsOf,
    max_rows: int = 0,
    order: Order | None = None,
    until: float = math.inf,
) -> Outcome:
    """Serves requests on equal devices. `max_rows`: most rows of a call of several requests; 0:
    requests share no calls. `order`: `ServingPolicy` if None.
    """
    policy: Order = ServingPolicy() if order is None else order
    return _Simulation(requests, devices, seconds_of, max_rows, policy).run(until)


class _Simulation:
    def __init__(
        self,
        requests: Sequence[Request],
        devices: int,
        seconds_of: SecondsOf,
        max_rows: int,
        order: Order,
    ) -> None:
        self._requests, self._seconds_of = requests, seconds_of
        self._max_rows, self._order = max_rows, order
        self._active: dict[int, _Progress] = {}
        self._idle = list(range(devices))
        # ends of calls: time, number, device, members
        self._calls: list[tuple[float, int, int, list[int]]] = []
        self._numbers = count()
        self._ends: dict[int, float] = {}
        self._seconds: dict[str, float] = {}

    def run(self, until: float) -> Outcome:
        coming = sorted(
            range(len(self._requests)), key=lambda number: -self._requests[number].arrival
        )
        while coming or self._calls:
            arrival = self._requests[coming[-1]].arrival if coming else math.inf
            end = self._calls[0][0] if self._calls else math.inf
            now = min(arrival, end)
            if now > until:
                break
            if arrival <= end:
                self._arrive(coming.pop())
            else:
                _, _, device, members = heapq.heappop(self._calls)
                self._end_call(members, now)
                self._idle.append(device)
            self._idle = [device for device in self._idle if not self._start_call(device, now)]
        return Outcome(self._requests, self._ends, self._seconds)

    def _arrive(self, number: int) -> None:
        request = self._requests[number]
        alone = request.alone(self._seconds_of)
        self._active[number] = _Progress(request.calls.number, alone)
        self._order.join(
            number,
            request.arrival,
            request.due,
            request.client,
            alone * request.prediction,
            request.calls.rows,
        )

    def _start_call(self, device: int, now: float) -> bool:
        """Starts the next call of an idle device; returns False if no request can use it."""
        ready = [
            number
            for number, one in self._active.items()
            if not one.running and one.device in (None, device)
        ]
        if not ready:
            return False
        leader = self._order.ranked(ready, now)[0]
        key = self._requests[leader].calls.key
        members = [leader]
        if self._max_rows:
            members += self._order.joined(
                leader,
                [number for number in ready if self._requests[number].calls.key == key],
                lambda rows: self._seconds_of(key, rows),
                now,
                self._max_rows,
            )
        rows = {number: self._requests[number].calls.rows for number in members}
        total = sum(rows.values())
        seconds = self._seconds_of(key, total)
        self._order.charge(members, seconds)
        for number in members:
            self._active[number].running, self._active[number].device = True, device
            client = self._requests[number].client
            part = seconds * rows[number] / total
            self._seconds[client] = self._seconds.get(client, 0.0) + part
        heapq.heappush(self._calls, (now + seconds, next(self._numbers), device, members))
        return True

    def _end_call(self, members: Sequence[int], now: float) -> None:
        for number in members:
            one, request = self._active[number], self._requests[number]
            one.running = False
            one.left -= 1
            one.remaining -= self._seconds_of(request.calls.key, request.calls.rows)
            if one.left:
                remaining = one.remaining * request.prediction
                self._order.predict(number, remaining, request.calls.rows)
            else:
                self._order.leave(number)
                del self._active[number]
                self._ends[number] = now


def poisson(rate: float, draw: random.Random) -> Iterator[float]:
    """Yields times of independent arrivals, `rate` per second on average."""
    now = 0.0
    while True:
        now += draw.expovariate(rate)
        yield now
