"""Due times, equal shares of clients and shared calls on one device, also on random traces."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from katz_graph.serving import policy as policy_module
from katz_graph.serving.policy import ServingPolicy

MAX_ROWS = 8
NEVER = math.inf


@dataclass(frozen=True)
class Request:
    """A request of equal evaluations, whose calls of equal `key` may be one call."""

    number: int
    arrival: float
    evaluations: int = 1
    key: int = 0
    rows: int = 1
    client: str = ""
    due: float = NEVER

    def seconds(self, rows: int) -> float:
        """Returns the seconds of a call. Rows of key 0 are free."""
        return 0.1 * (1 + self.key) * (1 + 0.5 * self.key * rows)

    @property
    def alone(self) -> float:
        return self.evaluations * self.seconds(self.rows)


@dataclass
class Served:
    """Serves requests on one device, whose calls take exactly the predicted seconds. `admits`:
    refuses requests that would be late, or make others late, if none shared calls.
    """

    trace: Sequence[Request]
    max_rows: int = MAX_ROWS
    admits: bool = False
    ends: dict[int, float] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)  # requests, by their first evaluations
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by client
    calls: int = 0

    def __post_init__(self) -> None:
        self._left = {request.number: request.evaluations for request in self.trace}
        self._policy: ServingPolicy[int] = ServingPolicy()
        self._waiting: dict[int, Request] = {}

    def run(self, until: float = NEVER) -> Served:
        coming = sorted(self.trace, key=lambda request: request.arrival, reverse=True)
        now = 1.0
        while (coming or self._waiting) and now < until:
            while coming and coming[-1].arrival <= now:
                self._arrive(coming.pop(), now)
            if self._waiting:
                now += self._call(now)
            elif coming:
                now = coming[-1].arrival
        return self

    def _rest(self, request: Request) -> float:
        return self._left[request.number] * request.seconds(request.rows)

    def _arrive(self, new: Request, now: float) -> None:
        if self.admits and new.due > new.arrival and not self._fits(new, now):
            return
        self._policy.join(new.number, new.arrival, new.due, new.client, new.alone, new.rows)
        self._waiting[new.number] = new

    def _fits(self, new: Request, now: float) -> bool:
        due = [one for one in self._waiting.values() if now + self._rest(one) <= one.due < NEVER]
        for request in sorted([*due, new], key=lambda one: one.due):
            now += self._rest(request)
            if now > request.due:
                return False
        return True

    def _call(self, now: float) -> float:
        """Makes the next call and returns its seconds."""
        leader = self._waiting[self._policy.ranked(self._waiting, now)[0]]
        alike = [number for number, one in self._waiting.items() if one.key == leader.key]
        members = [leader.number]
        members += self._policy.joined(leader.number, alike, leader.seconds, now, self.max_rows)
        seconds = leader.seconds(sum(self._waiting[one].rows for one in members))
        self._policy.charge(members, seconds)
        self.calls += 1
        self.seconds[leader.client] += seconds
        for number in members:
            request = self._waiting[number]
            if self._left[number] == request.evaluations:
                self.started.append(number)
            self._left[number] -= 1
            self._policy.predict(number, self._rest(request), request.rows)
            if not self._left[number]:
                self._policy.leave(number)
                del self._waiting[number]
                self.ends[number] = now + seconds
        return seconds


def random_trace(draw: random.Random, kinds: str) -> list[Request]:
    """Draws requests that are `d`ue later, already `l`ate, or `w`ithout a due time."""
    trace = []
    for number in range(draw.randint(2, 7)):
        arrival = 1.0 + draw.uniform(0, 2)
        new = Request(
            number,
            arrival,
            evaluations=draw.randint(1, 5),
            key=draw.randint(0, 2),
            rows=draw.randint(1, 3),
            client=draw.choice("ab"),
        )
        due = {"d": arrival + draw.uniform(1, 6) * new.alone, "l": arrival, "w": NEVER}
        trace.append(replace(new, due=due[draw.choice(kinds)]))
    return trace


def test_every_request_of_a_random_trace_ends_and_most_traces_share_calls() -> None:
    draw, shared = random.Random(1), 0
    for _ in range(10_000):
        trace = random_trace(draw, "ddlww")
        served = Served(trace).run()
        assert served.ends.keys() == {request.number for request in trace}
        shared += served.calls < sum(request.evaluations for request in trace)
    assert shared > 5_000


@pytest.mark.parametrize("kinds", ["d", "ddlw"])
def test_no_admitted_request_becomes_late_by_a_request_that_shares_its_calls(
    monkeypatch: pytest.MonkeyPatch, kinds: str
) -> None:
    """The time that is reserved for requests without due times is left out: it delays the others
    with or without shared calls.
    """
    monkeypatch.setattr(policy_module, "RESERVED_SHARE", 0.0)
    draw, shared, refused = random.Random(2), 0, 0
    for _ in range(10_000):
        trace = random_trace(draw, kinds)
        served = Served(trace, admits=True).run()
        shared += served.calls < sum(one.evaluations for one in trace if one.number in served.ends)
        refused += len(served.ends) < len(trace)
        for one in trace:
            if one.arrival < one.due:
                assert served.ends.get(one.number, 0.0) <= one.due + 1e-9
    assert shared > 4_000
    assert refused > 1_000


def test_requests_without_due_times_get_a_tenth_of_a_device_that_others_fill() -> None:
    due = [Request(number, 1 + number, 10, due=1e6 + number) for number in range(300)]
    free = [Request(1000, 1.5, 1000, key=1, client="free")]
    served = Served([*due, *free], max_rows=0).run(until=200.0)
    share = served.seconds["free"] / 199
    assert 0.08 <= share <= 0.12
    assert set(served.ends) <= set(range(300))


def test_a_single_request_starts_within_one_round_of_clients() -> None:
    many = [Request(number, 1 + number * 1e-4, 3, client="many") for number in range(1000)]
    others = [Request(2000 + number, 5 + number * 1e-3, 3, client="other") for number in range(3)]
    single = Request(3000, 5.01, 3, client="single")
    served = Served([*many, *others, single], max_rows=0).run(until=30.0)
    ahead = served.started[: served.started.index(3000)]
    after = [one for one in ahead if one not in served.ends or served.ends[one] > 5.01]
    assert len(after) <= 3
    assert [one for one in served.started if one < 2000] == sorted(
        one for one in served.started if one < 2000
    )


def test_clients_get_equal_seconds_whatever_their_requests_take_and_whenever_they_arrive() -> None:
    short = [Request(number, 1 + number * 1e-6, 1, client="short") for number in range(2000)]
    long = [Request(number, 1 + number * 1e-6, 8, client="long") for number in range(2000, 2250)]
    late = [Request(number, 51 + number * 1e-6, 2, client="late") for number in range(3000, 4000)]
    alone = Served([*short, *long], max_rows=0).run(until=51.0).seconds
    assert alone["short"] == pytest.approx(alone["long"], rel=0.05)
    served = Served([*short, *long, *late], max_rows=0).run(until=111.0).seconds
    for client in ("short", "long"):
        assert served[client] - alone[client] == pytest.approx(served["late"], rel=0.1)


def test_due_requests_go_first_and_late_ones_last() -> None:
    policy: ServingPolicy[str] = ServingPolicy()
    policy.join("late", 1.0, due=12.0, remaining=5.0)
    policy.join("late too", 0.5, due=13.0, remaining=5.0)
    policy.join("free", 2.0)
    policy.join("due later", 3.0, due=30.0, remaining=5.0)
    policy.join("due", 4.0, due=20.0, remaining=5.0)
    policy.join("unknown", 5.0, due=19.0)
    policy.join("outside", 0.0)
    names = ["late", "free", "due", "outside", "due later", "unknown", "late too"]
    expected = ["outside", "unknown", "due", "due later", "free", "late too", "late"]
    assert policy.ranked(names, 10.0) == expected
    policy.predict("late", 1.0, rows=1)
    assert policy.ranked(["free", "late"], 10.0) == ["late", "free"]


def test_runs_keep_their_place_between_their_tasks_and_clients_theirs_by_arrival() -> None:
    policy: ServingPolicy[str] = ServingPolicy()
    policy.join("first/text", 1.0, client="a")
    policy.join("second/text", 2.0, client="a")
    policy.leave("first/text")
    policy.join("other", 3.0, client="b")
    policy.join("first/sample", 1.0, client="a")
    assert policy.ranked(["second/text", "other", "first/sample"], 5.0)[0] == "first/sample"
    policy.join("earlier", 0.5, client="a")  # on its way to this device until now
    assert policy.ranked(["second/text", "first/sample", "earlier"], 5.0)[0] == "earlier"


@pytest.mark.parametrize(
    ("added", "after", "joins"),
    [(0.85, 0.0, True), (0.95, 0.0, False), (0.85, 3.0, True), (0.85, 5.0, False)],
)
def test_a_member_saves_a_tenth_of_its_seconds(added: float, after: float, joins: bool) -> None:
    """Its calls take 8 s alone."""
    policy: ServingPolicy[str] = ServingPolicy()
    policy.join("leader", 1.0)
    policy.join("other", 2.0, remaining=8.0 + after, seconds_after=after)
    policy.predict("other", 1.0 + after, 1)
    seconds = {1: 1.0, 2: 1.0 + added}
    assert policy.joined("leader", ["other"], seconds.get, 5.0, 2) == ["other"] * joins
    assert policy.joined("leader", ["other"], seconds.get, 5.0, 1) == []
    assert policy.joined("leader", ["other"], lambda rows: None, 5.0, 2) == []


@pytest.mark.parametrize("threatened", ["leader", "waiting", "member"])
def test_no_task_joins_that_makes_another_one_late(threatened: str) -> None:
    """A third row makes the call 0.6 s longer, which one task does not have."""
    due = {"leader": 100.0, "member": 100.0, "waiting": 200.0}
    due[threatened] = {"leader": 2.1, "member": 2.5, "waiting": 4.3}[threatened]
    remaining = {"leader": 2.0, "member": 2.0, "waiting": 3.0, "joiner": 2.0}
    seconds = {1: 1.0, 2: 1.0, 3: 1.6}

    def joined(waits: bool) -> list[str]:
        policy: ServingPolicy[str] = ServingPolicy()
        for name in ("leader", "member", "joiner", "waiting")[: 4 if waits else 3]:
            late = 1e9 if name == "joiner" else due[name] if waits else due[name] + 1.0
            policy.join(name, 1.0, late, remaining=remaining[name])
        return policy.joined("leader", ["member", "joiner"], seconds.get, 0.0, 4)

    assert joined(waits=True) == ["member"]
    assert joined(waits=False) == ["member", "joiner"]


def test_a_late_task_uses_no_time_for_which_a_task_that_is_on_time_waits() -> None:
    policy: ServingPolicy[str] = ServingPolicy()
    for name, due in (("leader", 50.0), ("late", 2.0), ("later", 60.0)):
        policy.join(name, 1.0, due, remaining=3.0)
    seconds = {1: 1.0, 2: 1.1, 3: 1.2}
    assert policy.joined("leader", ["late"], seconds.get, 0.0, 3) == []
    assert policy.joined("leader", ["late", "later"], seconds.get, 0.0, 3) == ["later", "late"]
    policy.leave("later")
    assert policy.joined("leader", ["late"], seconds.get, 0.0, 3) == ["late"]


def test_unusable_times_and_predictions_raise_no_error() -> None:
    policy: ServingPolicy[int] = ServingPolicy()
    values = (0.0, -1.0, 5.0, math.inf, -math.inf, math.nan)
    for number, (arrival, due, remaining) in enumerate(
        (arrival, due, remaining) for arrival in values for due in values for remaining in values
    ):
        policy.join(number, arrival, due, "", remaining, 1)
    tasks = range(len(policy))
    for now in (*values, 1e300, -1e300):
        ranked = policy.ranked(tasks, now)
        assert sorted(ranked) == list(tasks)
        for seconds in (*values, None):
            policy.joined(ranked[0], ranked, lambda rows, each=seconds: each, now, 4)
            policy.charge(ranked[:3], seconds or 0.0)
    for task in tasks:
        policy.leave(task)
    assert len(policy) == 0


def test_a_decision_among_a_thousand_tasks_takes_a_millisecond() -> None:
    draw = random.Random(3)
    policy: ServingPolicy[int] = ServingPolicy()
    for number in range(1000):
        due = draw.choice([NEVER, 50 + draw.uniform(0, 1000)])
        policy.join(number, 1 + draw.uniform(0, 9), due, draw.choice("abcdefg"), 1.0)
    fastest = NEVER
    for saved in (0.0, 0.9) * 10:
        began = time.thread_time()
        leader, *others = policy.ranked(range(1000), 60.0)
        policy.joined(leader, others, lambda rows, each=1 - saved: rows * each + 1, 60.0, 8)
        fastest = min(fastest, time.thread_time() - began)
    assert fastest < 1e-3
