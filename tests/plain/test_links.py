"""Measurements match simulated links with known rates."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from katz_graph.executor.measure.links import MAX_TRANSFER_BYTES, measure_link


@dataclass
class Wire:
    """Simulates a link on a virtual clock: a token bucket (as `tc ... tbf`) before a fast link, and
    a machine with occasional delays.
    """

    bytes_per_second: float
    latency: float
    burst: float = 0.0
    full_speed: float = 5e9
    noise: float = 0.0
    pause: float = 50e-6  # seconds between two transfers
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    total: float = 0.0
    largest: int = 0

    def __post_init__(self) -> None:
        self.tokens = self.burst

    def probe(self, size: int) -> float:
        quick = min(size, self.tokens)
        seconds = quick / self.full_speed + (size - quick) / self.bytes_per_second
        self.tokens = self._refilled(
            self.tokens - quick, quick / self.full_speed + self.latency + self.pause
        )
        late = abs(self.chance.gauss(0, self.noise)) + (
            0.4 if self.chance.random() < 0.08 and self.noise else 0.0
        )
        self.total += seconds + self.latency
        self.largest = max(self.largest, size)
        return (seconds + self.latency) * (1 + late)

    def _refilled(self, tokens: float, seconds: float) -> float:
        return min(self.burst, tokens + seconds * self.bytes_per_second)


@pytest.mark.parametrize("rate", [1.25e6, 1.25e8, 1.25e9, 4e9])  # 10 Mbit/s to shared memory
@pytest.mark.parametrize("latency", [20e-6, 1e-3, 20e-3])
@pytest.mark.parametrize("burst", [0, 32e3, 1e6, 16e6])
def test_a_burst_that_is_let_through_does_not_count_as_bandwidth(
    rate: float, latency: float, burst: float
) -> None:
    wire = Wire(rate, latency, burst)
    link = measure_link(wire.probe)
    assert link.bytes_per_second == pytest.approx(wire.bytes_per_second, rel=0.05)
    assert link.latency == pytest.approx(wire.latency, rel=0.05, abs=64 / wire.bytes_per_second)


@pytest.mark.parametrize("seed", range(20))
def test_a_machine_that_is_now_and_then_late_moves_it_little(seed: int) -> None:
    for burst in (0, 1e6):
        link = measure_link(
            Wire(1.25e8, 200e-6, burst, noise=0.04, chance=random.Random(seed)).probe
        )
        assert link.bytes_per_second == pytest.approx(1.25e8, rel=0.12)
        assert link.latency == pytest.approx(200e-6, rel=0.12)


def test_a_fast_link_is_asked_for_little_and_a_slow_one_not_for_long() -> None:
    # slow: 1 Mbit/s, the smallest transfer takes half a second
    fast, slow = Wire(1e10, 10e-6, full_speed=1e10), Wire(1.25e5, 0.05)
    measure_link(fast.probe)
    measure_link(slow.probe)
    assert fast.largest <= MAX_TRANSFER_BYTES and fast.total < 0.5
    assert slow.total < 5


def test_a_link_with_constant_time_has_a_bandwidth() -> None:
    assert measure_link(lambda size: 1e-3).bytes_per_second > 0
