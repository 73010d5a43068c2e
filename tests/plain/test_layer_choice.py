"""The choice of cached layers: equal to an exhaustive search over simulated evaluations, and quick."""

from __future__ import annotations

import itertools
import random
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from katz_graph.planner.searching.layer_choice import EvaluationTimes, LayerTimes

EVALUATIONS = 24  # times are whole numbers, so a lead of at most 16 is constant by then


def drawn(rng: random.Random, layers: int, most: int = 6) -> EvaluationTimes:
    found = []
    for _ in range(layers):
        full = rng.randint(1, most)
        found.append(
            LayerTimes(
                rng.choice([0, rng.randint(0, most)]),
                full,
                rng.randint(0, full),
                rng.randint(0, 2 * most),
            )
        )
    return EvaluationTimes(tuple(found), rng.randint(0, most), rng.choice([0, 3, 16]))


def simulated(times: EvaluationTimes, choices: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Returns the end of each evaluation [EVALUATIONS, C] for choices [C, layers], one event after
    the other.
    """
    link, device = np.zeros(len(choices)), np.zeros(len(choices))
    ends = []
    for evaluation in range(EVALUATIONS):
        link = np.maximum(link, device - times.ahead) if evaluation else link
        for layer, reads in zip(times.layers, choices.T, strict=True):
            device = device + layer.before
            link = link + reads * layer.load
            waits = np.where(reads, np.maximum(device, link), device)
            device = waits + np.where(reads, layer.cached, layer.full)
        device = device + times.after
        ends.append(device)
    return np.array(ends)


def test_the_chosen_layers_are_the_best_of_all_choices() -> None:
    rng = random.Random(5)
    won = 0
    for _ in range(1000):
        times = drawn(rng, rng.randint(1, 10))
        choices = np.array(list(itertools.product([False, True], repeat=len(times.layers))))
        ends = simulated(times, choices)
        periods = ends[-1] - ends[-2]
        best = times.best()
        place = int((choices == best).all(axis=1).argmax())
        assert periods[place] == periods.min()
        loads = choices @ [layer.load for layer in times.layers]
        assert loads[place] == loads[periods == periods.min()].min()
        assert times.period(best) == periods[place]
        assert times.first(best) == ends[0][place]
        assert times.ends(best)[-1] + times.after == periods[place]
        won += periods[place] < min(periods[0], periods[-1])
    assert won > 100  # neither none nor all


def test_of_equal_layers_the_last_ones_are_cached() -> None:
    times = EvaluationTimes((LayerTimes(1.0, 4.0, 1.0, 10.0),) * 8, ahead=100.0)
    assert times.best() == (False,) * 5 + (True,) * 3
    early = (True,) * 3 + (False,) * 5
    assert times.period(times.best()) == times.period(early)
    assert times.first(times.best()) < times.first(early)


@pytest.mark.parametrize("loads", [0.5, 1.0, 2.0])
def test_seventy_layers_take_milliseconds(loads: float) -> None:
    rng = random.Random(3)
    every = drawn(rng, 70, 10**6)
    scale = loads * every.period([False] * 70) / every.loads([True] * 70)
    layers = tuple(
        LayerTimes(one.before, one.full, one.cached, one.load * scale) for one in every.layers
    )
    times = EvaluationTimes(layers, every.after, every.ahead)
    taken = []
    for _ in range(3):
        began = time.thread_time()
        best = times.best()
        taken.append(time.thread_time() - began)
    assert min(taken) < 0.02
    assert times.period(best) <= min(times.period([False] * 70), times.period([True] * 70))
