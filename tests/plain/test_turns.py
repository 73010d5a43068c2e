"""Turns on a device: equal shares of seconds, whatever a unit takes; weights that are there first, but not for ever."""

from __future__ import annotations

from collections import Counter

from katz_graph.executor.turns import PATIENCE, Turns


def spent(seconds: dict[str, float], turns: int, preferred: str | None = None) -> Counter[str]:
    """Seconds that each flow got when all are always ready."""
    policy: Turns[str] = Turns()
    for flow in seconds:
        policy.join(flow)
    taken: Counter[str] = Counter()
    for _ in range(turns):
        flow = policy.choose(seconds, lambda one: preferred is None or one == preferred)
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


def test_weights_that_are_there_come_first_until_others_lose_patience() -> None:
    policy: Turns[str] = Turns()
    for flow in ("there", "other"):
        policy.join(flow)
    order = []
    for _ in range(4 * (PATIENCE + 1)):
        order.append(policy.choose(["there", "other"], lambda flow: flow == "there"))
        policy.charge(order[-1], 1.0)
    waits = "".join("x" if flow == "other" else "." for flow in order).split("x")
    assert "other" in order and max(map(len, waits)) <= PATIENCE + 1 and max(map(len, waits)) > 1
