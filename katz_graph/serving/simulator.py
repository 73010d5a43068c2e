"""Simulates requests on devices: arrivals, a policy, and the seconds of calls. Forecasts the ends
of requests that wait and run. Must not know models.

A device takes a request when it is idle, and keeps it until its end. Between two calls of a
request, the device may serve others.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, takewhile
from typing import Protocol

from katz_graph.serving.policy import ServingPolicy

SecondsOf = Callable[[Hashable, int], float]
"""Returns the seconds of a call by its key and number of rows."""

# A forecast decides again after this many shared calls of one company, and sees at most so many
# requests at once. After so many decisions it assumes the average speed for the others.
CALLS_PER_DECISION, VISIBLE, MAX_DECISIONS = 4, 48, 600


@dataclass(frozen=True, slots=True)
class Calls:
    """A part of a request: calls of one kind. Calls of equal keys of several requests may be one
    call, without a key (None) never. `number` is a fraction if a call has begun. `own`: seconds of
    each call that no request can share. Without rows, the host works and no device.
    """

    key: Hashable
    number: float
    rows: int = 1
    own: float = 0.0

    def seconds(self, seconds_of: SecondsOf) -> float:
        """Returns the seconds of one call alone."""
        return self.own + (0.0 if self.key is None else seconds_of(self.key, self.rows))


@dataclass(frozen=True, slots=True)
class Request:
    """A request: its arrival, which no other request has, and its due time in seconds, and its
    parts in order. `device`: that it has started on.
    """

    arrival: float
    work: tuple[Calls, ...]
    due: float = math.inf
    client: str = ""
    # predicted seconds, relative to the true ones
    prediction: float = 1.0
    device: int | None = None

    def alone(self, seconds_of: SecondsOf) -> float:
        """Returns the seconds of the request if it runs alone."""
        return sum(calls.number * calls.seconds(seconds_of) for calls in self.work)


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
        seconds_after: float = ...,
    ) -> None: ...

    @property
    def lasts(self) -> float: ...

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
    """The starts and ends of requests by number, and the rest of those that have arrived and
    not ended; the seconds for which devices worked for each client; and when the first device has
    no more work.
    """

    requests: Sequence[Request]
    starts: Mapping[int, float]
    ends: Mapping[int, float]
    left: Mapping[int, Request]
    seconds: Mapping[str, float]  # members of a call pay by their rows
    idle: float

    @property
    def on_time(self) -> float:
        """Returns the share of the requests with due times that ended in time."""
        due = [number for number, one in enumerate(self.requests) if one.due < math.inf]
        met = sum(self.ends.get(number, math.inf) <= self.requests[number].due for number in due)
        return met / len(due) if due else 1.0


@dataclass(slots=True, eq=False)
class _Progress:
    """The rest of a request on its device."""

    work: list[Calls]  # the last part comes first
    left: float  # calls of the current part
    remaining: float  # seconds alone
    device: int | None = None
    running: bool = False

    @property
    def part(self) -> Calls:
        return self.work[-1]


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


def forecast(
    requests: Sequence[Request],
    devices: int,
    seconds_of: SecondsOf,
    max_rows: int,
    now: float,
) -> Outcome:
    """Predicts starts and ends of requests that wait and run `now`, if no other request arrives.
    Waiting ones are in the order in which devices take them if due times do not matter.

    The time is bounded (MAX_DECISIONS), and decisions are approximate: a company shares several
    calls before the policy decides again, and a lone request runs up to the end of its part.
    """
    simulation = _Simulation(requests, devices, seconds_of, max_rows, ServingPolicy(), now)
    return simulation.run(math.inf)


@dataclass(slots=True)
class _Simulation:
    """`now`: the time of a forecast; None: simulates each decision."""

    requests: Sequence[Request]
    devices: int
    seconds_of: SecondsOf
    max_rows: int
    order: Order
    now: float | None = None
    active: dict[int, _Progress] = field(default_factory=dict)
    # ends of calls: time, number, device (None: the host), members, number and seconds of the calls
    calls: list[tuple[float, int, int | None, list[int], float, float]] = field(
        default_factory=list
    )
    numbers: Iterator[int] = field(default_factory=count)
    starts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    decisions: int = 0

    def run(self, until: float) -> Outcome:
        coming = sorted(
            range(len(self.requests)), key=lambda number: -self.requests[number].arrival
        )
        idle = list(range(self.devices))
        free = dict.fromkeys(idle, self.now or 0.0)
        now = self.now or 0.0
        while (coming or self.calls) and not self._is_long:
            arrival = self._arrival(coming)
            now, before = min(arrival, self.calls[0][0] if self.calls else math.inf), now
            if now > until:
                now = before
                break
            if arrival <= now:
                self._arrive(coming.pop(), now)
                arrival = self._arrival(coming)
                if self.now is not None and arrival <= now:
                    continue  # all that wait arrive before the first decision
            else:
                device = self._end_calls(now)
                if device is not None:
                    free[device] = now
                    idle.append(device)
            idle = [device for device in idle if not self._start_calls(device, now, arrival)]
        left = {number: self._left(number, until) for number in self.active}
        if self._is_long:
            free = self._guess(coming, now, free)
        return Outcome(
            self.requests, self.starts, self.ends, left, self.seconds, min(free.values())
        )

    @property
    def _is_long(self) -> bool:
        return self.now is not None and self.decisions >= MAX_DECISIONS

    def _arrival(self, coming: Sequence[int]) -> float:
        """Returns when the next request can be served."""
        if not coming or (self.now is not None and len(self.active) >= VISIBLE):
            return math.inf
        arrival = self.requests[coming[-1]].arrival
        return arrival if self.now is None else max(self.now, arrival)

    def _arrive(self, number: int, now: float) -> None:
        request = self.requests[number]
        alone = request.alone(self.seconds_of)
        work = [calls for calls in reversed(request.work) if calls.number > 0]
        if not work:
            self.starts[number] = self.ends[number] = now
            return
        self.active[number] = _Progress(work, work[-1].number, alone, request.device)
        if request.device is not None:
            self.starts[number] = now
        self.order.join(
            number,
            request.arrival,
            request.due,
            request.client,
            alone * request.prediction,
            work[-1].rows,
            request.prediction * self._seconds_after(work),
        )
        self._start_host(number, now)

    def _seconds_after(self, work: Sequence[Calls]) -> float:
        """Returns the seconds of the parts after the last one that requests may share. The last
        part comes first.
        """
        last = takewhile(lambda calls: calls.key is None, work)
        return sum(calls.number * calls.seconds(self.seconds_of) for calls in last)

    def _start_host(self, number: int, now: float) -> None:
        """Starts the current part of a request if it is work of the host."""
        one = self.active[number]
        if one.part.rows == 0:
            one.running = True
            self.starts.setdefault(number, now)
            seconds = one.left * one.part.own
            heapq.heappush(
                self.calls, (now + seconds, next(self.numbers), None, [number], one.left, seconds)
            )

    def _start_calls(self, device: int, now: float, arrival: float) -> bool:
        """Starts the next calls of an idle device; returns False if no request can use it.
        `arrival`: of the next request.
        """
        ready = [
            number
            for number, one in self.active.items()
            if not one.running and one.device in (None, device)
        ]
        if not ready:
            return False
        self.decisions += 1
        leader = self._prepared_first(self.order.ranked(ready, now))
        key = self.active[leader].part.key
        members = [leader]
        if self.max_rows and key is not None:
            members += self.order.joined(
                leader,
                [number for number in ready if self.active[number].part.key == key],
                lambda rows: self.seconds_of(key, rows),
                now,
                self.max_rows,
            )
        parts = {number: self.active[number].part for number in members}
        total = sum(part.rows for part in parts.values())
        seconds = sum(part.own for part in parts.values())
        seconds += 0.0 if key is None else self.seconds_of(key, total)
        number_of_calls = self._number_of_calls(members, now, seconds, arrival)
        seconds *= number_of_calls
        self.order.charge(members, seconds)
        for number, part in parts.items():
            self.active[number].running, self.active[number].device = True, device
            self.starts.setdefault(number, now)
            client = self.requests[number].client
            share = seconds * part.rows / total
            self.seconds[client] = self.seconds.get(client, 0.0) + share
        end = (now + seconds, next(self.numbers), device, members, number_of_calls, seconds)
        heapq.heappush(self.calls, end)
        return True

    def _prepared_first(self, ranked: Sequence[int]) -> int:
        """Returns the first request that has other work on the device before it can join the
        leader's calls, as long as these have room for it; else the leader.
        """
        leader = ranked[0]
        key = self.active[leader].part.key
        if not self.max_rows or key is None:
            return leader
        parts = [self.active[number].part for number in ranked]
        room = self.max_rows - sum(part.rows for part in parts if part.key == key)
        for number, part in zip(ranked, parts, strict=True):
            later = self.active[number].work[-2:-1]
            if part.key is None and later and later[0].key == key and later[0].rows <= room:
                return number
        return leader

    def _number_of_calls(
        self, members: Sequence[int], now: float, seconds: float, arrival: float
    ) -> float:
        """Returns for how many calls of some seconds the members stay together."""
        left = min(self.active[number].left for number in members)
        if self.now is None:
            return min(left, 1.0)
        if self.max_rows:
            left = min(left, CALLS_PER_DECISION)
        host = (end for end, _, device, *_ in self.calls if device is None)
        lasts = min(min((arrival, *host)) - now, self.order.lasts)
        if lasts < math.inf and seconds > 0:
            left = min(left, max(1.0, math.ceil(lasts / seconds)))
        return left

    def _end_calls(self, now: float) -> int | None:
        """Ends the earliest calls; returns their device, or None if the host worked."""
        _, _, device, members, number_of_calls, _ = heapq.heappop(self.calls)
        for number in members:
            one, request = self.active[number], self.requests[number]
            one.running = False
            one.left -= number_of_calls
            one.remaining -= number_of_calls * one.part.seconds(self.seconds_of)
            if one.left <= 1e-9:
                one.work.pop()
                one.left = one.part.number if one.work else 0.0
            if one.work:
                remaining = one.remaining * request.prediction
                self.order.predict(number, remaining, one.part.rows)
                self._start_host(number, now)
            else:
                self.order.leave(number)
                del self.active[number]
                self.ends[number] = now
        return device

    def _left(self, number: int, until: float) -> Request:
        """Returns the rest of an active request at a time."""
        one, left = self.active[number], self.active[number].left
        for end, _, _, members, number_of_calls, seconds in self.calls:
            if number in members and end > until:
                left -= number_of_calls * (1.0 - (end - until) / seconds)
        work = (replace(one.part, number=left), *reversed(one.work[:-1]))
        return replace(self.requests[number], work=work, device=one.device)

    def _guess(
        self, coming: Sequence[int], now: float, free: Mapping[int, float]
    ) -> dict[int, float]:
        """Serves the rest in order, each at the speed that requests had until now. Returns when
        each device has no more work.
        """
        assert self.now is not None
        done = sum(self.requests[number].alone(self.seconds_of) for number in self.ends)
        spent = self.devices * (now - self.now)
        pace = spent / done if done else 1.0
        times = [(now, device) for device in free]
        heapq.heapify(times)
        rest = {number: one.remaining for number, one in self.active.items()}
        order = [*self.order.ranked(rest, now), *reversed(coming)]
        for number in order:
            at, device = times[0]
            seconds = rest.get(number)
            if seconds is None:
                seconds = self.requests[number].alone(self.seconds_of)
            self.starts.setdefault(number, at)
            self.ends[number] = at + pace * seconds
            heapq.heapreplace(times, (self.ends[number], device))
        return {device: at for at, device in times}


def poisson(rate: float, draw: random.Random) -> Iterator[float]:
    """Yields times of independent arrivals, `rate` per second on average."""
    now = 0.0
    while True:
        now += draw.expovariate(rate)
        yield now
