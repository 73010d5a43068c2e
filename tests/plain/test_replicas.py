"""Replicas of ControlNets are made and dropped in time, on a simulated clock."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Mapping

import pytest

from katz_graph.executor.cluster.replicas import IDLE, PERIOD, Change, Replicas

STEPS = {"canny": 0.1, "depth": 0.1, "pose": 0.1}  # seconds of an evaluation


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Pool:
    """Simulates members that do a second of work per second, observed ten times per second."""

    def __init__(self, *members: str) -> None:
        self.clock = Clock()
        self.replicas = Replicas(members, self.clock)
        self.queues: dict[str, dict[str, float]] = {
            member: defaultdict(float) for member in members
        }
        self.changes: list[tuple[float, Change]] = []

    def ask(self, control: str, seconds: float) -> str:
        member = self.replicas.route(control, self.queues)
        self.queues[member][control] += seconds
        return member

    def tick(self, arriving: Mapping[str, float] | None = None, seconds: float = 0.1) -> None:
        """Adds sessions of `arriving` seconds of work, then lets all members work fairly for a
        tick.
        """
        for control, work in (arriving or {}).items():
            self.ask(control, work)
        for queue in self.queues.values():
            busy = sorted((work, control) for control, work in queue.items() if work > 0.0)
            left = seconds
            for number, (work, control) in enumerate(busy):
                done = min(work, left / (len(busy) - number))
                queue[control] -= done
                left -= done
        self.clock.now += seconds
        self.changes += [
            (round(self.clock.now, 1), change)
            for change in self.replicas.observe(self.queues, STEPS)
        ]

    def run(self, seconds: float, arriving: Mapping[str, float] | None = None) -> None:
        for _ in range(round(seconds * 10)):
            self.tick(arriving)


def test_first_use_goes_to_the_least_loaded_member() -> None:
    replicas = Replicas(("a", "b", "c"), Clock())
    assert replicas.holders("canny") == ()
    assert (
        replicas.route("canny", {"a": {"depth": 2.0}, "b": {"depth": 1.0}, "c": {"depth": 1.5}})
        == "b"
    )
    assert replicas.holders("canny") == ("b",)


def test_later_ones_go_to_the_shortest_queue_among_those_that_hold_it() -> None:
    pool = Pool("a", "b", "c")
    pool.run(6.0, {"canny": 0.3})
    assert pool.replicas.holders("canny") == ("a", "b")
    assert (
        pool.replicas.route(
            "canny", {"a": {"canny": 3.0}, "b": {"canny": 1.0, "depth": 1.0}, "c": {}}
        )
        == "b"
    )
    assert (
        pool.replicas.route(
            "canny", {"a": {"canny": 1.9}, "b": {"canny": 1.0, "depth": 1.0}, "c": {}}
        )
        == "a"
    )


def test_a_queue_that_stays_long_replicates_after_the_period_and_not_before() -> None:
    """Work arrives twice as fast as one member works, so the queue is long from the second tick."""
    pool = Pool("a", "b")
    pool.run(60.0, {"canny": 0.2})
    assert pool.changes[0][1] == Change("replicate", "canny", "b")
    assert PERIOD <= pool.changes[0][0] <= PERIOD + 0.5
    assert len(pool.changes) == 1
    # both members work, and the backlog stays
    assert sum(map(sum, (queue.values() for queue in pool.queues.values()))) < 10.0


def test_a_burst_shorter_than_the_period_changes_nothing() -> None:
    pool = Pool("a", "b")
    for _ in range(20):
        pool.run(1.0, {"canny": 0.3})
        pool.run(4.0)
    assert pool.changes == []


def test_a_queue_of_one_step_is_not_long() -> None:
    replicas = Replicas(("a", "b"), clock := Clock())
    replicas.route("canny", {})
    for _ in range(100):
        clock.now += 1.0
        assert replicas.observe({"a": {"canny": 0.1}}, STEPS) == ()
    assert replicas.observe({"a": {"canny": 0.11}}, STEPS) == ()
    clock.now += PERIOD
    assert replicas.observe({"a": {"canny": 0.11}}, STEPS) == (Change("replicate", "canny", "b"),)


def test_an_idle_replica_is_dropped_after_a_minute_but_never_the_last() -> None:
    pool = Pool("a", "b", "c")
    pool.run(30.0, {"canny": 0.3})
    assert set(pool.replicas.holders("canny")) == {"a", "b", "c"}
    while any(sum(queue.values()) > 0.05 for queue in pool.queues.values()):
        pool.tick()
    emptied = pool.clock.now
    pool.changes.clear()
    pool.run(IDLE - 1.0)
    assert pool.changes == []
    pool.run(600.0)
    assert [change.kind for _, change in pool.changes] == ["drop", "drop"]
    assert all(emptied + IDLE - 0.2 <= when <= emptied + IDLE + 1.0 for when, _ in pool.changes)
    assert len(pool.replicas.holders("canny")) == 1


def test_of_replicas_that_are_idle_equally_long_the_oldest_stays() -> None:
    replicas = Replicas(("a", "b", "c"), clock := Clock())
    replicas.route("canny", {})
    queues: dict[str, dict[Hashable, float]] = {"a": {"canny": 1.0}, "b": {}, "c": {}}
    for member in ("b", "c"):
        replicas.observe(queues, STEPS)
        clock.now += PERIOD
        assert replicas.observe(queues, STEPS) == (Change("replicate", "canny", member),)
        queues[member]["canny"] = 1.0
    replicas.observe(queues, STEPS)
    clock.now += IDLE
    assert replicas.observe({}, STEPS) == (
        Change("drop", "canny", "c"),
        Change("drop", "canny", "b"),
    )
    assert replicas.holders("canny") == ("a",)


def test_work_for_another_does_not_keep_a_replica() -> None:
    pool = Pool("a", "b")
    pool.run(6.0, {"canny": 0.3})
    assert pool.replicas.holders("canny") == ("a", "b")
    pool.run(300.0, {"depth": 0.05})
    assert len(pool.replicas.holders("canny")) == 1


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9, 1.2, 1.7])
def test_it_does_not_flap(load: float) -> None:
    """Random 3 s sessions keep `load` members busy for half an hour. No dropped replica is made
    again soon.
    """
    draw = random.Random(1)
    pool = Pool("a", "b", "c", "d")
    for _ in range(18_000):
        pool.tick({"canny": 3.0} if draw.random() < load / 30 else None)
    dropped = [when for when, change in pool.changes if change.kind == "drop"]
    made = [when for when, change in pool.changes if change.kind == "replicate"]
    assert len(pool.changes) <= 2 * 1_800 / (IDLE + PERIOD)
    assert all(not 0.0 < again - when < PERIOD for when in dropped for again in made)
    assert made or load < 0.5


def test_of_two_that_compete_the_one_with_more_work_goes_first_and_the_other_waits_to_see() -> None:
    """Both wait for one member, which gets 1.5 s of work per second. A second member for the
    heavier one leaves room for the other, which stays.
    """
    pool = Pool("a", "b")
    pool.run(0.1, {"depth": 0.02})
    pool.queues["b"]["pose"] = 1.0  # so that both start on `a`
    assert pool.ask("canny", 0.1) == "a"
    pool.queues["b"]["pose"] = 0.0
    pool.run(30.0, {"canny": 0.13, "depth": 0.02})
    assert [change for _, change in pool.changes] == [Change("replicate", "canny", "b")]


def test_two_crowded_members_are_relieved_at_once_onto_different_members() -> None:
    pool = Pool("a", "b", "c", "d")
    for _ in range(80):
        pool.tick({"canny": 0.3, "depth": 0.3})
    assert pool.replicas.holders("canny")[:1] == ("a",)
    assert pool.replicas.holders("depth")[:1] == ("b",)
    first = [change for when, change in pool.changes if when == pool.changes[0][0]]
    assert [(change.control, change.member) for change in first] == [("canny", "c"), ("depth", "d")]


def test_a_pool_that_is_full_everywhere_is_left_alone() -> None:
    """Another replica would only wait elsewhere."""
    replicas = Replicas(("a", "b"), clock := Clock())
    replicas.route("canny", {})
    for _ in range(100):
        clock.now += 1.0
        assert replicas.observe({"a": {"canny": 2.0}, "b": {"depth": 2.0}}, STEPS) == ()


def test_a_lost_member_holds_nothing_and_is_used_again_when_asked() -> None:
    pool = Pool("a", "b")
    pool.run(6.0, {"canny": 0.3})
    pool.replicas.lost("a")
    assert pool.replicas.holders("canny") == ("b",)
    pool.replicas.lost("b", "canny")
    assert pool.replicas.holders("canny") == ()
    assert pool.replicas.route("canny", {"a": {}, "b": {"depth": 1.0}}) == "a"
