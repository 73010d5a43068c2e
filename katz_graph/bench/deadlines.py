"""`katz bench deadlines`: sends a server more jobs with due times than it can serve, and counts
those that end in time, with and without an order by due times. `--simulate` serves them by
simulated devices, in several orders.

Jobs sample pictures of three sizes in equal parts. In the simulation their calls take the seconds
that one CPU thread took. A job is due at its arrival plus five times its seconds alone. Load 1 is
the most that the devices can serve one at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

from katz_graph.bench.deadlines_server import (
    DEVICES,
    DUE,
    SLO,
    STEPS,
    ServerWay,
    shares_on_time,
)
from katz_graph.bench.result import BenchResult
from katz_graph.ir.device import interpolated
from katz_graph.serving import simulator
from katz_graph.serving.policy import ServingPolicy
from katz_graph.serving.simulator import (
    Calls,
    Order,
    Outcome,
    Request,
    SecondsOf,
    poisson,
)

MAX_ROWS = 8
ROWS = 2  # of a guided job
SCATTER = 0.3  # standard deviation of predictions' logarithms
SECONDS: Mapping[Hashable, Mapping[int, float]] = {
    64: {1: 0.0068, 2: 0.0080, 4: 0.0104, 8: 0.0155},
    128: {1: 0.0098, 2: 0.0131, 4: 0.0204, 8: 0.0358},
    192: {1: 0.0151, 2: 0.0210, 4: 0.0374, 8: 0.0708},
}
"""Seconds of a call by side of the picture in pixels and rows: a miniature network on one thread of
an AMD Zen 5.
"""
ON_TIME = {"alone": {0.9: 0.93, 1.1: 0.80}, "shared": {0.9: 0.96, 1.1: 0.92}}  # minimum shares
MAX_COMPARED_LOAD = 1.1
MIN_GAIN = 0.30  # over first come, mean of loads up to that
MAX_LOSS_BY_SCATTER, MAX_LOSS_WITHOUT_GAIN = 0.08, 0.01
MAX_SIMULATION_ERROR = 0.05
MIN_SHARE_WITHOUT_DUE = 0.08  # of the time, next to a full load of jobs with due times


class FirstCome(ServingPolicy[int]):
    """Serves jobs by arrival: jobs are numbered by it."""

    def ranked(self, ready: Iterable[int], now: float) -> list[int]:
        return sorted(ready)


class EqualShares(ServingPolicy[int]):
    """Gives all jobs equal seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._used: dict[int, float] = {}

    def charge(self, members: Collection[int], seconds: float) -> None:
        for task in members:
            self._used[task] = self._used.get(task, 0.0) + seconds / len(members)

    def ranked(self, ready: Iterable[int], now: float) -> list[int]:
        return sorted(ready, key=lambda task: (self._used.get(task, 0.0), task))


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the number of jobs per load, and of traces to average."""

    jobs: int = 900
    loads: tuple[float, ...] = (0.8, 0.9, 1.0, 1.1, 1.3)
    traces: int = 3  # of a simulation


def measured(side: Hashable, rows: int) -> float:
    """Returns the seconds of a call."""
    seconds = interpolated(rows, SECONDS[side])
    assert seconds is not None  # all numbers up to MAX_ROWS are known
    return seconds


def without_gain(side: Hashable, rows: int) -> float:
    """Returns the seconds of a call on a device that gains nothing by more rows."""
    return SECONDS[side][ROWS] / ROWS * rows


@dataclass(frozen=True, slots=True)
class Way:
    """A way to serve jobs."""

    order: Callable[[], Order]
    max_rows: int = 0
    scatter: float = 0.0
    seconds_of: SecondsOf = measured


WAYS = {
    "first come": Way(FirstCome),
    "equal shares": Way(EqualShares),
    "alone": Way(ServingPolicy),
    "shared": Way(ServingPolicy, MAX_ROWS),
    "scattered": Way(ServingPolicy, MAX_ROWS, SCATTER),
    "no gain, alone": Way(ServingPolicy, seconds_of=without_gain),
    "no gain, shared": Way(ServingPolicy, MAX_ROWS, seconds_of=without_gain),
}
SERVERS: Mapping[str, ServerWay] = {
    "first come": ((), FirstCome),
    "alone": (DUE, ServingPolicy),
    "shared": ((*DUE, "--shared-rows", str(MAX_ROWS)), None),
}
Shares = Mapping[tuple[str, float], float]
"""Shares of jobs on time, by way and load."""
COLUMNS = ("load", "first come", "equal", "due", "+ shared", "scattered", "no gain", "+ shared")
NOTES = (
    "equal: equal shares of the time; due: earliest due first, late ones last; + shared: that, and "
    "jobs share calls;",
    f"scattered: the same with predictions off by {SCATTER:.0%}; no gain: devices on which a call "
    "of more rows takes",
    "as long as separate calls",
)


def run(simulate: bool = False, scale: Scale | None = None) -> BenchResult:
    """Measures a server, or runs a simulation."""
    if not simulate:
        return _of_server(scale or Scale(jobs=600, loads=(0.8, 0.9, 1.0, 1.1)))
    scale = scale or Scale()
    on_time = {
        (name, load): fmean(
            served(way, trace(load, scale.jobs, seed, way.scatter)).on_time
            for seed in range(1, scale.traces + 1)
        )
        for name, way in WAYS.items()
        for load in scale.loads
    }
    bounds = _bounds_of_simulation(on_time)
    metrics = {_metric(*key): value for key, value in on_time.items()}
    metrics |= {name: value for name, (value, _) in bounds.items()}
    return BenchResult(
        "deadlines",
        all(value >= bound for value, bound in bounds.values()),
        metrics,
        {name: f">= {bound:g}" for name, (_, bound) in bounds.items()},
        COLUMNS,
        [[load, *(f"{on_time[name, load]:.3f}" for name in WAYS)] for load in scale.loads],
        notes=NOTES,
    )


def _of_server(scale: Scale) -> BenchResult:
    found = shares_on_time(scale.jobs, scale.loads, SERVERS)
    bounds = _bounds({key: real for key, (real, _) in found.items()})
    metrics: dict[str, Any] = {}
    for key, (real, simulated) in found.items():
        name = _metric(*key)
        metrics |= {name: real} | ({} if simulated is None else {f"simulated_{name}": simulated})
    error = max(abs(real - other) for real, other in found.values() if other is not None)
    metrics |= {name: value for name, (value, _) in bounds.items()} | {"simulation_error": error}
    return BenchResult(
        "deadlines",
        all(value >= bound for value, bound in bounds.values()) and error <= MAX_SIMULATION_ERROR,
        metrics,
        {name: f">= {bound:g}" for name, (_, bound) in bounds.items()}
        | {"simulation_error": f"<= {MAX_SIMULATION_ERROR}"},
        ("load", "first come", "simulated", "due", "simulated", "+ shared"),
        [
            [load, *found["first come", load], *found["alone", load], found["shared", load][0]]
            for load in scale.loads
        ],
    )


def _metric(name: str, load: float) -> str:
    return f"{name.replace(', ', '_').replace(' ', '_')}_at_{load:g}"


def _bounds(on_time: Shares) -> dict[str, tuple[float, float]]:
    """Returns the figures that servers and simulations must reach, each with its lower bound."""
    least = {
        _metric(name, load): (on_time[name, load], bound)
        for name, by_load in ON_TIME.items()
        for load, bound in by_load.items()
        if (name, load) in on_time
    }
    return least | {"gain_over_first_come": (_over(on_time, "shared", "first come"), MIN_GAIN)}


def _bounds_of_simulation(on_time: Shares) -> dict[str, tuple[float, float]]:
    return _bounds(on_time) | {
        "scattered_over_exact": (_over(on_time, "scattered", "shared"), -MAX_LOSS_BY_SCATTER),
        "shared_without_gain": (
            _over(on_time, "no gain, shared", "no gain, alone"),
            -MAX_LOSS_WITHOUT_GAIN,
        ),
        "share_without_due": (share_without_due(), MIN_SHARE_WITHOUT_DUE),
    }


def _over(on_time: Shares, name: str, other: str) -> float:
    """Returns the gain of a way over another, the mean of loads up to MAX_COMPARED_LOAD."""
    return fmean(
        value - on_time[other, load]
        for (way, load), value in on_time.items()
        if way == name and load <= MAX_COMPARED_LOAD
    )


def trace(load: float, jobs: int, seed: int, scatter: float = 0.0) -> list[Request]:
    """Draws jobs. `scatter`: standard deviation of the logarithm of predicted over true seconds."""
    draw = random.Random(seed)
    alone = {side: STEPS * seconds[ROWS] for side, seconds in SECONDS.items()}
    rate = load * DEVICES / fmean(alone.values())
    requests = []
    for arrival in islice(poisson(rate, draw), jobs):
        side = draw.choice(list(SECONDS))
        requests.append(
            Request(
                arrival,
                Calls(side, STEPS, ROWS),
                arrival + SLO * alone[side],
                prediction=math.exp(draw.gauss(0.0, scatter)),
            )
        )
    return requests


def served(way: Way, requests: list[Request], until: float = math.inf) -> Outcome:
    return simulator.simulate(requests, DEVICES, way.seconds_of, way.max_rows, way.order(), until)


def share_without_due(jobs: int = 200) -> float:
    """Returns the share of the time that jobs without due times get next to a full load."""
    due = trace(1.2, jobs, seed=0)
    last = due[-1].arrival
    free = [Request(0.1 + number * 1e-3, due[0].calls, client="free") for number in range(jobs)]
    seconds = served(WAYS["alone"], [*due, *free], until=last).seconds
    return seconds["free"] / sum(seconds.values())
