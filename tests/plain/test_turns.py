"""The run that arrived first keeps the device; later runs use the time that it leaves."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from katz_graph.executor.turns.device_order import (
    HOLD_S,
    LOADING_HOLD_S,
    MAX_ABSENT_S,
    STAY,
    DeviceOrder,
    Place,
)


@dataclass
class Device:
    """Holds a device's tasks: names of resident weights by task, and tasks that load models."""

    weights: dict[str, str] = field(default_factory=dict)
    loading: set[str] = field(default_factory=set)
    resident: str = ""

    def __post_init__(self) -> None:
        self.order: DeviceOrder[str] = DeviceOrder(
            lambda task: self.weights.get(task, self.resident) != self.resident,
            self.loading.__contains__,
        )

    def chosen(self, *ready: str, now: float = 100.0) -> str | float:
        """Returns the chosen task, or the seconds until one may run."""
        task, until = self.order.choose(ready, now)
        return until - now if task is None else task


def test_the_run_that_arrived_first_goes_first_whenever_it_is_ready() -> None:
    device = Device()
    for task, arrival in (("late", 9.0), ("early", 3.0), ("early too", 3.0)):
        device.order.join(task, Place(arrival))
    assert device.chosen("late", "early too", "early") == "early"
    for _ in range(20):
        device.order.worked(["early"], 100.0)
        assert device.chosen("late", "early") == "early"
    assert device.chosen("late", "early too") == "early too"
    assert device.chosen("late") == "late"


def test_a_run_is_late_if_the_rest_of_it_after_its_sampler_ends_after_its_due_time() -> None:
    device = Device()
    for task, arrival, after in (("first", 3.0, 0.0), ("second", 4.0, 2.0)):
        device.order.join(
            task, Place(arrival, due=102.0 - after / 4, seconds_after=after), remaining=1.0
        )
    assert device.chosen("first", "second") == "first"
    device.order.predict("second", 0.0, 1)
    assert device.chosen("first", "second", now=99.0) == "second"


def test_calls_outside_of_runs_go_before_all_runs_and_no_device_stays_free_for_them() -> None:
    device = Device()
    device.order.join("sampling", Place(3.0))
    device.order.join("statistics", Place(0.0))
    assert device.chosen("sampling", "statistics") == "statistics"
    device.order.leave("statistics", 100.0)
    assert device.chosen("sampling") == "sampling"


def test_the_device_stays_free_between_two_tasks_of_the_first_run() -> None:
    device = Device(loading={"loads"})
    device.order.join("samples", Place(3.0))
    device.order.join("next job", Place(4.0))
    device.order.join("loads", Place(5.0))
    device.order.leave("samples", 100.0)
    assert device.chosen("next job", now=100.0) == pytest.approx(HOLD_S)
    assert device.chosen("next job", now=100.0 + HOLD_S) == "next job"
    assert device.chosen("loads", now=100.0 + HOLD_S) == pytest.approx(LOADING_HOLD_S - HOLD_S)
    device.order.join("decodes", Place(3.0))
    assert device.chosen("next job", "decodes", now=100.001) == "decodes"
    device.order.leave("decodes", 101.0)
    device.order.ended(3.0)
    assert device.chosen("next job", now=101.0) == "next job"


def test_an_earlier_run_never_waits_for_a_later_one() -> None:
    device = Device(loading={"first"})
    device.order.join("first", Place(3.0))
    device.order.join("second", Place(4.0))
    device.order.leave("second", 100.0)
    assert device.chosen("first", now=100.0) == "first"


def test_a_run_of_which_nothing_comes_is_forgotten() -> None:
    device = Device()
    for number in range(1000):
        task, arrival, now = f"task {number}", 1.0 + number, 100.0 + number
        device.order.join(task, Place(arrival))
        device.order.leave(task, now)
    assert len(device.order._absent) <= MAX_ABSENT_S + 1


def test_weights_of_a_waiting_run_are_not_switched_at_once() -> None:
    device = Device({"first": "a", "second": "b", "third": "a"}, resident="a")
    for number, task in enumerate(device.weights):
        device.order.join(task, Place(1.0 + number))
    device.order.worked(["first"], 100.0, switch=1.5)
    assert device.chosen("second", now=101.0) == pytest.approx(STAY * 1.5 - 1.0)
    # a later run with the same weights may use the device meanwhile
    assert device.chosen("second", "third", now=101.0) == "third"
    assert device.chosen("second", now=100.0 + STAY * 1.5) == "second"
    device.resident = "b"
    device.order.worked(["second"], 120.0, switch=1.5)
    assert device.chosen("first", "second", now=120.0) == "first"


def total(switch: float, step: float, gap: float, steps: int) -> tuple[float, float]:
    """Simulates two runs with different weights, of which each step is followed by a wait for
    another device of `gap` seconds. Returns the seconds until each has ended.
    """
    device = Device({"a": "a", "b": "b"})
    left, free, ended, now = {"a": steps, "b": steps}, {"a": 0.0, "b": 0.0}, {}, 0.0
    for number, task in enumerate(left):
        device.order.join(task, Place(1.0 + number))
    while left:
        ready = [task for task in left if free[task] <= now]
        task, until = device.order.choose(ready, now)
        if task is None:
            now = min([until, *(free[task] for task in left if free[task] > now)])
            continue
        switched = 0.0 if device.resident == task else switch
        device.resident, now = task, now + switched + step
        device.order.worked([task], now, switch=switched)
        free[task] = now + gap
        left[task] -= 1
        if not left[task]:
            del left[task]
            device.order.leave(task, now)
            ended[task] = now
    return ended["a"], ended["b"]


@pytest.mark.parametrize("gap", [0.0, 0.05, 1.0])
def test_the_first_run_is_as_fast_as_alone_though_another_needs_other_weights(gap: float) -> None:
    first, second = total(switch=1.5, step=0.1, gap=gap, steps=50)
    alone = 1.5 + 50 * 0.1 + 49 * gap
    assert first == pytest.approx(alone)
    assert second <= 2 * alone + gap + STAY * 1.5
