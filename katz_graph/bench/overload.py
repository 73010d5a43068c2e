"""`katz bench overload`: sends more jobs than a server can carry out. Refusals must be quick,
memory must not grow, no accepted job may be lost, and the rate of finished jobs must stay near
capacity.

Capacity is measured with a queue that is never empty, before and after the doubled load that is
compared with it. Jobs are sent at fixed times, whether or not the server keeps up. The rate of
finished jobs runs from the end of the first job to the end of the last.
"""

from __future__ import annotations

import itertools
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from katz_graph.bench.result import BenchResult
from katz_graph.testing.server_process import Answer, Served, painting, resident, serving

REFUSAL_BOUND = 0.05  # seconds, 99th percentile
MEMORY_BOUND = 50e6  # bytes of growth
GOODPUT_BOUND = 0.9
SENDERS = 16  # threads


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the size of a job, and the duration of each load."""

    steps: int = 20
    side: int = 64  # pixels; a step takes about 20 ms with one thread and one branch
    peak_seconds: float = 30.0
    double_seconds: float = 60.0
    tenfold_seconds: float = 60.0
    queue: int = 16


@dataclass(slots=True)
class Load:
    """Records the responses to jobs sent at a rate."""

    accepted: list[str] = field(default_factory=list)  # job ids
    refusals: list[float] = field(default_factory=list)  # response seconds of each
    waits: list[float] = field(default_factory=list)  # Retry-After headers, seconds
    other: list[int] = field(default_factory=list)  # other HTTP statuses


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    seeds = itertools.count()
    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name), "--queue-limit", str(scale.queue)) as server,
    ):
        server.wait_for([_job(server, seeds, scale).data["prompt_id"]], 60)  # loads
        before_it = _peak(server, seeds, scale)
        double, goodput = _at_rate(server, seeds, scale, 2 * before_it, scale.double_seconds)
        peak = (before_it + _peak(server, seeds, scale)) / 2
        before = resident([server.pid])
        tenfold, _ = _at_rate(server, seeds, scale, 10 * peak, scale.tenfold_seconds)
        growth = resident([server.pid]) - before
        accepted = double.accepted + tenfold.accepted
        history = server.wait_for(accepted, 120)
        lost = [one for one in accepted if history[one]["status"]["status_str"] != "success"]
        status, _ = server.stop()
    refusals = sorted(tenfold.refusals)
    metrics: dict[str, Any] = {
        "jobs_per_second": peak,
        "seconds_a_job": 1 / peak,
        "goodput_at_double": goodput / peak,
        "refusals": len(refusals),
        "refusal_p50": median(refusals),
        "refusal_p99": refusals[int(0.99 * len(refusals))],
        "refusal_most": refusals[-1],
        "retry_after": median(tenfold.waits),
        "memory_growth": growth,
        "accepted": len(accepted),
        "lost": len(lost),
        "other_answers": len(double.other) + len(tenfold.other),
        "exit_status": status,
    }
    bounds = {
        "goodput_at_double": f">= {GOODPUT_BOUND}",
        "refusal_p99": f"< {REFUSAL_BOUND}",
        "memory_growth": f"< {MEMORY_BOUND:.0f}",
        "lost": "0",
        "other_answers": "0",
        "exit_status": "0",
    }
    quick = metrics["refusal_p99"] < REFUSAL_BOUND and growth < MEMORY_BOUND
    ok = (
        quick
        and metrics["goodput_at_double"] >= GOODPUT_BOUND
        and not (lost or metrics["other_answers"] or status)
    )
    return BenchResult(
        "overload",
        ok,
        metrics,
        bounds,
        ("what", "figure"),
        [[what, value] for what, value in metrics.items()],
    )


def _job(server: Served, seeds: itertools.count[int], scale: Scale) -> Answer:
    return server.submit(painting(next(seeds), scale.steps, scale.side, guidance=1.0))


def _peak(server: Served, seeds: itertools.count[int], scale: Scale) -> float:
    """Returns the jobs per second with a queue that is never empty."""
    known, started = set(server.finished()), time.perf_counter()
    while time.perf_counter() - started < scale.peak_seconds:
        if _job(server, seeds, scale).status == 429:
            time.sleep(0.2)
    rate = _rate(server, known)
    server.drain()
    return rate


def _rate(server: Served, known: set[str]) -> float:
    """Returns the jobs per second, of the jobs not in `known`: from the end of the first to the end
    of the last, by the server's clock.
    """
    ends: list[float] = sorted(
        data["timestamp"]
        for identifier, entry in server.finished().items()
        if identifier not in known
        for name, data in entry["status"]["messages"]
        if name == "execution_success"
    )
    return (len(ends) - 1) / (ends[-1] - ends[0]) * 1000


def _at_rate(
    server: Served, seeds: itertools.count[int], scale: Scale, rate: float, seconds: float
) -> tuple[Load, float]:
    """Sends `rate` jobs per second; returns the responses, and the rate of jobs finished in this
    time.
    """
    load, lock = Load(), threading.Lock()
    known, started = set(server.finished()), time.perf_counter()

    def send(number: int) -> None:
        time.sleep(max(0.0, started + number / rate - time.perf_counter()))
        answer = _job(server, seeds, scale)
        with lock:
            if answer.status == 200:
                load.accepted.append(answer.data["prompt_id"])
            elif answer.status == 429:
                load.refusals.append(answer.seconds)
                load.waits.append(float(answer.headers["retry-after"]))
            else:
                load.other.append(answer.status)

    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(send, range(int(rate * seconds))))
    goodput = _rate(server, known)
    server.drain()
    return load, goodput
