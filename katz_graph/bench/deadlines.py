"""`katz bench deadlines`: sends servers more jobs with due times than they can serve, and counts
those that end in time, with and without an order by due times, and with shared calls. `--simulate`
serves them by simulated devices, in several orders.

Jobs sample pictures of three sizes in equal parts. In the simulation their calls take the seconds
that one CPU thread took. A job is due at its arrival plus five times its seconds alone. Load 1 is
the most that the devices can serve one at a time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

from katz_graph.bench.deadlines_server import (
    COLUMNS as SERVER_COLUMNS,
)
from katz_graph.bench.deadlines_server import (
    DEVICES,
    DUE,
    MAX_ROWS,
    ROWS,
    SHARED,
    SLO,
    Found,
    ServerWay,
    measure,
)
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError
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

STEPS = 20  # of a simulated job
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
AT_LEAST = {
    "scattered_over_exact": -MAX_LOSS_BY_SCATTER,
    "shared_without_gain": -MAX_LOSS_WITHOUT_GAIN,
    "share_without_due": MIN_SHARE_WITHOUT_DUE,
}
AT_MOST = {
    "simulation_error": MAX_SIMULATION_ERROR,
    # of another client, which starts them after this one arrives: those that the runner already
    # has without serving them, two for each device, and one of a round
    "jobs_before_a_single_one": 2.0 * DEVICES + 1,
    "call_error_median": 0.05,
    "call_error_p95": 0.15,
    # of a job, at half of its time: after groups, and while others arrive
    "rest_error_median": 0.10,
    "rest_error_crowded": 0.10,
}
"""Bounds of other figures."""


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
    """Sets the size of a simulation."""

    jobs: int = 900  # at each load
    loads: tuple[float, ...] = (0.8, 0.9, 1.0, 1.1, 1.3)
    traces: int = 3  # to average


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
SERVERS = {
    "first come": ServerWay((), FirstCome),
    "alone": ServerWay(DUE, ServingPolicy),
    "shared": ServerWay((*DUE, *SHARED), ServingPolicy, MAX_ROWS),
}
TURNS = "turns"
LOADS = (0.8, 0.9, 1.0, 1.1)
JOBS = 600  # of a server at each load
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


def run(
    simulate: bool = False,
    part: str | None = None,
    loads: str | None = None,
    jobs: int | None = None,
    scale: Scale | None = None,
) -> BenchResult:
    """Measures servers, or runs a simulation. `part`: ways to serve, and `turns`; `loads`: numbers;
    both separated by commas. `jobs`: at each load.
    """
    if not simulate:
        parts = (*SERVERS, TURNS) if part is None else _parts(part)
        at = {
            load: {
                name: way
                for name, way in SERVERS.items()
                # to save time, only where a bound needs it, unless loads are given
                if name in parts and (loads or name != "alone" or load in ON_TIME[name])
            }
            for load in (_loads(loads) if loads else LOADS)
        }
        at = {load: ways for load, ways in at.items() if ways}
        return _judged(measure(at, jobs or JOBS, SCATTER, TURNS in parts))
    if part is not None:
        raise InputError("--part: a simulation has no parts")
    scale = scale or Scale()
    simulated = scale.loads if loads is None else _loads(loads)
    on_time = {
        (name, load): fmean(
            served(way, trace(load, jobs or scale.jobs, seed, way.scatter)).on_time
            for seed in range(1, scale.traces + 1)
        )
        for name, way in WAYS.items()
        for load in simulated
    }
    figures = {
        "scattered_over_exact": _over(on_time, "scattered", "shared"),
        "shared_without_gain": _over(on_time, "no gain, shared", "no gain, alone"),
        "share_without_due": share_without_due(),
    }
    rows = [[load, *(f"{on_time[name, load]:.3f}" for name in WAYS)] for load in simulated]
    return _result(on_time, figures, COLUMNS, rows, NOTES)


def _loads(text: str) -> tuple[float, ...]:
    try:
        loads = tuple(map(float, text.split(",")))
    except ValueError:
        loads = ()
    if not loads or not all(0 < load < math.inf for load in loads):
        raise InputError(f"--loads {text}: expected numbers above 0, such as 0.9,1.1")
    return loads


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    for one in parts:
        if one not in (*SERVERS, TURNS):
            raise InputError(f"--part {one}: expected some of {', '.join((*SERVERS, TURNS))}")
    return parts


def _judged(found: Found) -> BenchResult:
    figures = dict(found.figures)
    errors = [
        abs(found.real[key] - one) for key, one in found.simulated.items() if key in found.real
    ]
    if errors:
        figures["simulation_error"] = max(errors)
    if any(name == "scattered" for name, _ in found.simulated):
        figures["scattered_over_exact"] = _over(found.simulated, "scattered", "shared")
    simulated = {f"simulated_{_metric(*key)}": one for key, one in found.simulated.items()}
    return _result(found.real, figures | simulated, SERVER_COLUMNS, found.rows)


def _result(
    on_time: Shares,
    figures: Mapping[str, float],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    notes: Sequence[str] = (),
) -> BenchResult:
    """Judges shares on time and other figures by those bounds for which there is a figure."""
    metrics = {_metric(*key): value for key, value in on_time.items()} | dict(figures)
    at_least = {
        _metric(name, load): bound
        for name, by_load in ON_TIME.items()
        for load, bound in by_load.items()
    } | AT_LEAST
    if {name for name, _ in on_time} >= {"first come", "shared"}:
        metrics["gain_over_first_come"] = _over(on_time, "shared", "first come")
        at_least["gain_over_first_come"] = MIN_GAIN
    at_least = {name: bound for name, bound in at_least.items() if name in metrics}
    at_most = {name: bound for name, bound in AT_MOST.items() if name in metrics}
    return BenchResult(
        "deadlines",
        all(metrics[name] >= bound for name, bound in at_least.items())
        and all(metrics[name] <= bound for name, bound in at_most.items()),
        metrics,
        {name: f">= {bound:g}" for name, bound in at_least.items()}
        | {name: f"<= {bound:g}" for name, bound in at_most.items()},
        columns,
        rows,
        notes=notes,
    )


def _metric(name: str, load: float) -> str:
    return f"{name.replace(', ', '_').replace(' ', '_')}_at_{load:g}"


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
                (Calls(side, STEPS, ROWS),),
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
    free = [Request(0.1 + number * 1e-3, due[0].work, client="free") for number in range(jobs)]
    seconds = served(WAYS["alone"], [*due, *free], until=last).seconds
    return seconds["free"] / sum(seconds.values())
