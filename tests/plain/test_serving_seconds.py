"""Seconds of calls follow the groups that ran, whatever the profile said."""

from __future__ import annotations

import math
import random
import statistics
import time

import pytest
from planner_devices import MS, devices, region, several

from katz_graph.executor.worker.device_program import device_program
from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.serving.seconds import (
    FIRST_EVALUATIONS,
    GROUPS,
    MAX_AGE,
    MAX_ERRORS,
    MAX_KEYS,
    TRIALS,
    CallSeconds,
)

# milliseconds of a small UNet's evaluation on a CPU, by rows: affine from 2 to 8, not elsewhere
MEASURED = {1: 6.8, 2: 8.0, 4: 10.4, 8: 15.5, 16: 28.1}


def real(rows: int) -> float:
    """Returns the milliseconds between measured rows, slightly bent, as devices are."""
    below = max(one for one in MEASURED if one <= rows)
    above = min(one for one in MEASURED if one >= rows)
    share = 0.0 if above == below else (rows - below) / (above - below)
    straight = MEASURED[below] + share * (MEASURED[above] - MEASURED[below])
    return straight * (1 + 0.04 * math.sin(math.pi * share))


def groups(count: int, seed: int) -> list[tuple[int, float]]:
    """Returns groups of 1 to 16 rows that vary by 3 %, and one in 25 that was disturbed."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        rows = chance.randint(1, 16)
        disturbed = chance.choice([3.0] + 24 * [1.0])
        found.append((rows, real(rows) * chance.gauss(1, 0.03) * disturbed))
    return found


@pytest.mark.parametrize("factor", [1.0, 5.0, 0.2], ids=["right", "five times", "a fifth"])
def test_fifty_groups_suffice_whatever_the_profile_said(factor: float) -> None:
    errors = []
    for seed in range(10):
        known = CallSeconds()
        known.expect("unet", {rows: ms * factor for rows, ms in MEASURED.items()})
        for rows, ms in groups(50, seed):
            known.add("unet", rows, ms)
        for rows in range(1, 17):
            found = known.seconds("unet", rows)
            assert found is not None
            errors.append(abs(found / real(rows) - 1))
    errors.sort()
    print(f"median {statistics.median(errors):.3f}, P95 {errors[len(errors) * 95 // 100]:.3f}")
    assert statistics.median(errors) <= 0.05
    assert errors[len(errors) * 95 // 100] <= 0.15


def test_rows_that_never_ran_are_corrected_by_those_that_did() -> None:
    known = CallSeconds()
    known.expect("unet", {1: 5.0, 2: 6.0, 8: 12.0})
    assert known.seconds("unet", 5) == 9.0  # of the profile's line
    for _ in range(2):
        known.add("unet", 2, 3.0)
    # of 6 ms as expected, then of the median of the first group and the corrected expectation
    assert (known.predicted, known.measured) == (6.0 + 4.5, 6.0)
    known.expect("unet", {1: 5.0, 2: 6.0, 8: 12.0})  # by the next request
    assert [known.seconds("unet", rows) for rows in (1, 2, 5, 8)] == [2.5, 3.0, 4.5, 6.0]
    assert known.seconds("unet", 16) is None and known.seconds("transformer", 1) is None


def test_rows_that_never_ran_take_no_longer_than_more_rows_and_no_less_than_fewer() -> None:
    known = CallSeconds()
    known.expect("unet", {1: 5.0, 2: 6.0, 8: 6.5, 16: 7.0})
    for _ in range(GROUPS):
        known.add("unet", 8, 4.0)
        known.add("unet", 4, 3.0)
    one, two, four, eight, sixteen = (known.seconds("unet", rows) for rows in (1, 2, 4, 8, 16))
    assert one == two == four == 3.0 and eight == 4.0 and sixteen == pytest.approx(7.0 * 4.0 / 6.5)
    for _ in range(GROUPS):
        known.add("unet", 8, 9.0)
        known.add("unet", 4, 1.0)
    assert known.seconds("unet", 2) == 1.0 and known.seconds("unet", 16) == 9.0


def test_rows_that_were_slow_while_the_device_was_disturbed_are_tried_again() -> None:
    known = CallSeconds()
    known.expect("unet", {1: 6.0, 2: 10.0, 4: 15.0})
    for rows, ms in [(2, 10.0)] * GROUPS + [(4, 40.0)] * GROUPS:
        known.add("unet", rows, ms)
    assert known.optimistic_seconds("unet", 4) == 40.0  # so no request joins
    for _ in range(MAX_AGE):
        known.add("unet", 2, 10.0)
    assert known.optimistic_seconds("unet", 4) == known.seconds("unet", 2) == 10.0
    assert known.seconds("unet", 4) == 15.0


def test_more_rows_count_as_free_until_they_were_tried() -> None:
    known = CallSeconds()
    assert known.optimistic_seconds("unet", 1) is None
    known.expect("unet", {1: 5.0, 8: 12.0})
    assert known.optimistic_seconds("unet", 8) == 5.0
    for rows, seconds in ((2, 6.0), (4, 20.0)):
        before = known.optimistic_seconds("unet", rows)
        for _ in range(TRIALS):
            assert known.optimistic_seconds("unet", rows) == before
            known.add("unet", rows, seconds)
        assert known.optimistic_seconds("unet", rows) == seconds
    assert known.optimistic_seconds("unet", 3) == 6.0 and known.seconds("unet", 3) == 13.0
    assert known.optimistic_seconds("unet", 1) == 6.0


def test_one_disturbed_group_changes_hardly_anything_and_a_slower_device_is_followed() -> None:
    known = CallSeconds()
    for _ in range(4):
        known.add("unet", 4, 1.0)
    known.add("unet", 4, 60.0)
    assert known.seconds("unet", 4) == 1.0
    for _ in range(GROUPS // 2 + 1):
        known.add("unet", 4, 2.0)
    assert known.seconds("unet", 4) == 2.0
    cold = CallSeconds()
    cold.expect("unet", {1: 1.0})
    for seconds in (40.0, 1.1, 1.1):  # the first call records
        cold.add("unet", 1, seconds)
    assert cold.seconds("unet", 1) == pytest.approx(1.1)


def test_times_that_are_none_do_not_count_and_old_keys_are_dropped() -> None:
    known = CallSeconds()
    for seconds in (0.0, -1.0, math.nan, math.inf):
        known.add("unet", 2, seconds)
        known.expect("unet", {2: seconds})
    known.add("unet", 0, 1.0)
    assert known.seconds("unet", 2) is None
    known.add("unet", 2, 1.0)
    for number in range(MAX_KEYS):
        known.add(number, 1, 1.0)
    assert known.seconds("unet", 2) is None and known.seconds(0, 1) == 1.0


def test_errors_of_predictions_are_those_of_the_last_evaluations_without_the_first_ones() -> None:
    known = CallSeconds()
    for _ in range(FIRST_EVALUATIONS + 2):  # the first has no prediction, the last has not ended
        known.add("unet", 1, 1.0)
    assert known.error(0.5) is None
    parts = CallSeconds()
    for seconds in [(1.0, 3.0)] * (FIRST_EVALUATIONS + 1) + [(2.0, 3.0), (1.0, 3.0)]:
        for key, one in zip(("encoder", "decoder"), seconds, strict=True):
            parts.add(key, 4, one)
    assert parts.error(0.5) == pytest.approx(1 / 5)
    for seconds in [1.0] * 89 + [1.25] * 8 + [2.0] * 3:
        known.add("unet", 1, seconds)
    assert (known.error(0.5), known.error(0.95), known.error(0.98)) == pytest.approx((0, 0.2, 0.5))
    for _ in range(GROUPS + MAX_ERRORS):
        known.add("unet", 1, 1.0)
    assert known.error(0.999) == 0.0


def test_a_scheduler_may_ask_a_thousand_times_in_a_decision() -> None:
    known = CallSeconds()
    for number in range(100):
        known.expect(number, MEASURED)
        for rows, ms in groups(20, number):
            known.add(number, rows, ms)
    ask = [(key, rows) for key in range(100) for rows in range(1, 11)]
    best = math.inf
    for _ in range(5):
        started = time.perf_counter()
        for key, rows in ask:
            known.seconds(key, rows)
        best = min(best, time.perf_counter() - started)
    assert best <= 1e-3


def test_a_device_gets_the_planned_seconds_of_its_calls_at_every_number_of_rows() -> None:
    base = several(region(branches=2), after="cost")
    profiled = base.keys["positive-encoder"]
    profile = {(profiled, 1, False): 10 * MS, (profiled, 8, False): 24 * MS}
    (device,) = devices(1.0, measured=profile)
    program = several(region(branches=2), devices=(device,), links={})
    part = device_program(program, device.name)
    (segments,) = part.program.segments
    shares = {
        name: call.shares for one in segments for call in one.calls for name in call.operations
    }
    encoder, mid = (shares[f"positive-{part}"] for part in ("encoder", "mid"))
    known = CallSeconds()
    for key, seconds in part.seconds.items():
        known.expect(key, dict(zip(ROW_BUCKETS, seconds, strict=True)))
    found = [known.seconds(encoder, rows) for rows in (1, 2, 3, 8, 16)]
    # of the profile, by a line, and above it by the work
    assert found == pytest.approx([10 * MS, 12 * MS, 14 * MS, 24 * MS, 48 * MS])
    assert known.seconds(mid, 4) == pytest.approx(4 * 3 * MS)  # by the work
    assert part.program.prediction == program.prediction
    assert not part.program.target.device(device.name).measured  # is not sent with each request
