"""Turns on a device: equal shares of seconds, whatever a unit takes; weights that are there first, but not for ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from katz_graph.executor.turns import SHARE, STAY, Turns


def spent(seconds: dict[str, float], turns: int) -> Counter[str]:
    """Seconds that each flow got when all are always ready."""
    policy: Turns[str] = Turns()
    for flow in seconds:
        policy.join(flow)
    taken: Counter[str] = Counter()
    for _ in range(turns):
        flow = policy.choose(seconds)
        policy.charge(flow, seconds[flow])
        taken[flow] += seconds[flow]  # type: ignore[assignment]
    return taken


def test_equal_flows_alternate() -> None:
    policy: Turns[str] = Turns()
    policy.join("a")
    policy.join("b")
    order = []
    for _ in range(6):
        order.append(policy.choose(["a", "b"]))
        policy.charge(order[-1], 0.2)
    assert order == ["a", "b", "a", "b", "a", "b"]


def test_flows_with_units_of_unequal_length_get_equal_seconds() -> None:
    taken = spent({"small": 0.01, "large": 0.17}, 2000)
    assert abs(taken["small"] - taken["large"]) <= 0.34  # two units of the larger


def test_a_flow_that_had_nothing_to_do_has_no_claim_to_the_time_before() -> None:
    policy: Turns[str] = Turns()
    policy.join("steady")
    policy.join("late")
    for _ in range(100):
        policy.charge(policy.choose(["steady"]), 0.1)
    order = []
    for _ in range(40):
        order.append(policy.choose(["steady", "late"]))
        policy.charge(order[-1], 0.1)
    assert order.count("steady") >= 18


@dataclass
class Shared:
    """What two flows that want other weights had of a device, in seconds on a virtual clock."""

    total: float
    switching: float
    longest_wait: float


def shared(step: float, switch: float, steps: int) -> Shared:
    """Two requests of so many steps, each always ready, each with weights of its own."""
    policy: Turns[str] = Turns()
    left, last, resident = {"a": steps, "b": steps}, {"a": 0.0, "b": 0.0}, ""
    found = Shared(0.0, 0.0, 0.0)
    for flow in left:
        policy.join(flow)
    while left:
        flow = policy.choose(list(left), lambda one: one == resident)  # noqa: B023 (called at once)
        spent, resident = (0.0 if flow == resident else switch), flow
        found.longest_wait = max(found.longest_wait, found.total - last[flow])
        found.switching, found.total = found.switching + spent, found.total + spent + step
        last[flow] = found.total
        policy.charge(flow, spent + step, spent)
        left[flow] -= 1
        if not left[flow]:
            del left[flow]
            policy.leave(flow)
    return found


@pytest.mark.parametrize("step", [0.05, 0.1, 0.3])
def test_requests_with_other_weights_work_most_of_the_time(step: float) -> None:
    """A switch takes as long as 5 to 30 steps; one after the other there would be two."""
    steps = round(120.0 / step)
    got = shared(step, switch=1.5, steps=steps)
    assert got.switching <= 0.15 * (got.total - got.switching)
    assert got.total <= 1.15 * 2 * (steps * step + 1.5)
    assert got.longest_wait <= (STAY + 1) * 1.5 + step + SHARE


def test_short_requests_are_done_one_after_the_other() -> None:
    got = shared(0.1, switch=1.5, steps=20)
    assert got.switching == 2 * 1.5 and got.total == pytest.approx(2 * (20 * 0.1 + 1.5))


def test_what_takes_no_time_to_switch_stays_for_nobody() -> None:
    assert shared(0.1, switch=0.0, steps=20).longest_wait == pytest.approx(0.1)


def test_many_with_the_weights_that_are_there_do_not_keep_out_the_one_without() -> None:
    policy: Turns[str] = Turns()
    flows = [f"there {number}" for number in range(5)] + ["other"]
    for flow in flows:
        policy.join(flow)
    resident, taken, since, waited = "there", Counter[str](), 0.0, 0.0
    for _ in range(4000):
        flow = policy.choose(flows, lambda one: one.startswith(resident))  # noqa: B023 (called at once)
        switch = 0.0 if flow.startswith(resident) else 1.5
        waited, since = max(waited, since), (0.0 if flow == "other" else since + 0.1 + switch)
        resident = flow.split()[0]
        policy.charge(flow, 0.1 + switch, switch)
        taken[flow] += 1
    assert max(taken.values()) <= 1.2 * min(taken.values())  # equal shares, however many want the same
    assert waited <= 5 * ((STAY + 1) * 1.5 + 0.1 + SHARE)  # each of the others has its share meanwhile
