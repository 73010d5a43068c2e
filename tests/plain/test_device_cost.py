"""A call's cost on a device is measured, or scaled by the roofline. Computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from katz_graph.ir.device import Device, Work

DEVICE = Device(
    "cpu:0", flops_per_second=100.0, bytes_per_second=10.0, contention=1.1, memory_contention=2.0
)
# 5 s of arithmetic, 2 s of memory
ARITHMETIC = Work(flops=500.0, weight_bytes=10.0, activation_bytes=10.0)
# 1 s of arithmetic, 4 s of memory
MEMORY = Work(flops=100.0, weight_bytes=30.0, activation_bytes=10.0)


def test_neighbours_slow_down_the_bound_of_a_call() -> None:
    assert DEVICE.cost("a", 1, ARITHMETIC) == 5.0
    assert DEVICE.cost("a", 1, ARITHMETIC, busy=True) == pytest.approx(5.5)
    assert DEVICE.cost("m", 1, MEMORY) == 4.0
    assert DEVICE.cost("m", 1, MEMORY, busy=True) == pytest.approx(8.0)
    assert replace(DEVICE, memory_contention=None).cost("m", 1, MEMORY, busy=True) == pytest.approx(
        4.4
    )


def test_measured_times_are_used_unchanged() -> None:
    device = replace(
        DEVICE, measured={("a", 1, False): 6.0, ("a", 1, True): 6.1, ("a", 2, False): 13.0}
    )
    assert device.cost("a", 1, ARITHMETIC) == 6.0
    assert device.cost("a", 1, ARITHMETIC, busy=True) == 6.1
    assert device.cost("a", 2, ARITHMETIC.batched(2)) == 13.0
    assert device.cost("b", 1, ARITHMETIC) == 5.0


def test_times_of_other_sizes_are_scaled_by_the_roofline() -> None:
    device = replace(DEVICE, measured={("a", 1, False): 6.0, ("m", 2, True): 20.0})
    assert device.cost("a", 1, ARITHMETIC, busy=True) == pytest.approx(6.0 * 1.1)
    assert device.cost("a", 2, ARITHMETIC.batched(2)) == pytest.approx(12.0)
    assert device.cost("m", 2, MEMORY.batched(2)) == pytest.approx(10.0)
    # two busy rows: weights are read once, (30 + 20) bytes, at half speed
    assert device.cost("m", 1, MEMORY) == pytest.approx(20.0 * 4 / 10)


def test_times_between_measured_rows_lie_on_a_line_and_others_are_scaled_from_the_nearest() -> None:
    measured = {("a", 1, False): 6.0, ("a", 2, False): 8.0, ("a", 8, False): 20.0}
    device = replace(DEVICE, measured={**measured, ("a", 3, False): 11.0, ("a", 4, True): 18.0})
    rows = {number: device.cost("a", number, ARITHMETIC.batched(number)) for number in range(1, 17)}
    assert [rows[1], rows[2], rows[3], rows[8]] == [6.0, 8.0, 11.0, 20.0]  # as measured
    # of the line between buckets: the batch of 3 is known for itself only
    assert rows[4] == pytest.approx(12.0) and rows[5] == pytest.approx(14.0)
    assert rows[16] == pytest.approx(2 * rows[8])
    busy = [device.cost("a", number, ARITHMETIC.batched(number), busy=True) for number in (6, 16)]
    # six alone are known, else the four busy ones are nearest
    assert busy == pytest.approx([16.0 * 1.1, 18.0 * 16 / 4])


def test_work_that_is_nothing_costs_nothing() -> None:
    assert DEVICE.cost("", 1, Work()) == DEVICE.cost("", 4, Work(), busy=True) == 0.0
