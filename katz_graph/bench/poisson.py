"""Part `poisson` of `katz bench together`: latencies of jobs that arrive at random times, at nearly
the rate that one worker can serve one at a time, with and without sharing of calls.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import fmean, quantiles

from katz_graph.bench.result import BenchResult
from katz_graph.executor.engine import DeviceEngine
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.serving.simulator import poisson
from katz_graph.testing.requests import bare_context

LOAD = 0.95  # of the jobs a second that one worker serves one at a time
MIN_MEAN, MIN_P95 = 3.0, 4.0  # latency one at a time / with sharing


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Sets the number of jobs, of jobs that measure the capacity, and the seed of the times."""

    jobs: int = 240
    measured: int = 24
    seed: int = 1


def latencies(
    engine: DeviceEngine, programs: Sequence[Program], arrivals: Sequence[float]
) -> list[float]:
    """Returns the seconds from each job's arrival to its latent. `arrivals`: seconds from now."""
    started = time.perf_counter()

    def one(program: Program, arrival: float) -> float:
        due = started + arrival
        time.sleep(max(0.0, due - time.perf_counter()))
        engine.cluster.run(program, bare_context(engine))
        return time.perf_counter() - due

    with ThreadPoolExecutor(len(arrivals)) as pool:
        return list(pool.map(one, cycle(programs), arrivals))


def compare(
    shared: DeviceEngine, plain: DeviceEngine, regions: Sequence[Region], scale: Arrivals
) -> BenchResult:
    """Serves the same arrivals by both engines at the same time, so other programs disturb both."""
    ways = {"one at a time": plain, "with sharing": shared}
    programs = {name: [one.plan(region) for region in regions] for name, one in ways.items()}

    def served(arrivals: Sequence[float]) -> dict[str, list[float]]:
        with ThreadPoolExecutor(len(ways)) as pool:
            found = {
                name: pool.submit(latencies, engine, programs[name], arrivals)
                for name, engine in ways.items()
            }
            return {name: seconds.result() for name, seconds in found.items()}

    for _ in range(2):  # loads the models, and learns the seconds of calls
        served([0.0] * len(regions))
    last = max(served([0.0] * scale.measured)["one at a time"])
    rate = LOAD * scale.measured / last
    found = served(list(islice(poisson(rate, random.Random(scale.seed)), scale.jobs)))
    figures = {
        name: (fmean(seconds), quantiles(seconds, n=20)[-1]) for name, seconds in found.items()
    }
    (mean, p95), (shared_mean, shared_p95) = figures.values()
    metrics = {"poisson_mean": mean / shared_mean, "poisson_p95": p95 / shared_p95}
    return BenchResult(
        "together",
        metrics["poisson_mean"] >= MIN_MEAN and metrics["poisson_p95"] >= MIN_P95,
        metrics,
        {"poisson_mean": f">= {MIN_MEAN} x", "poisson_p95": f">= {MIN_P95} x"},
        notes=[
            f"{scale.jobs} jobs at {LOAD} of the capacity, {name}: "
            f"mean latency {mean:.2f} s, P95 {p95:.2f} s"
            for name, (mean, p95) in figures.items()
        ],
    )
