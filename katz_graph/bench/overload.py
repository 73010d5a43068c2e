"""`katz bench overload`: more jobs than a server can carry out. Refusals are quick, memory stays, nothing accepted is lost, and what is
finished in a second stays near the most that can be.

Capacity is measured with a queue that is never empty; load then comes at fixed times, whether or not the server keeps up.
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
from katz_graph.bench.served import Served, painting, resident, serving

REFUSAL_BOUND = 0.05  # seconds, 99th percentile
MEMORY_BOUND = 50e6  # bytes
GOODPUT_BOUND = 0.9
SENDERS = 16  # threads


@dataclass(frozen=True, slots=True)
class Scale:
    """`side`: with the miniature models and one thread a step of 96 px takes about 20 ms."""

    steps: int = 10
    side: int = 96
    peak_seconds: float = 20.0
    double_seconds: float = 30.0
    tenfold_seconds: float = 60.0
    queue: int = 16


@dataclass(slots=True)
class Load:
    """What came of jobs that were sent at a rate."""

    accepted: list[str] = field(default_factory=list)
    refusals: list[float] = field(default_factory=list)  # seconds each took
    waits: list[float] = field(default_factory=list)  # what Retry-After said
    other: list[int] = field(default_factory=list)  # answers that are neither


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    seeds = itertools.count()
    with tempfile.TemporaryDirectory() as name, serving(Path(name), "--queue-limit", str(scale.queue)) as server:
        server.wait_for([server.submit(painting(next(seeds), scale.steps, scale.side)).data["prompt_id"]], 60)  # loads
        peak = _peak(server, seeds, scale)
        double, goodput = _at_rate(server, seeds, scale, 2 * peak, scale.double_seconds)
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
        "step_seconds": 1 / peak / scale.steps,
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
    ok = quick and metrics["goodput_at_double"] >= GOODPUT_BOUND and not (lost or metrics["other_answers"] or status)
    return BenchResult("overload", ok, metrics, bounds, ("what", "figure"), [[what, value] for what, value in metrics.items()])


def _peak(server: Served, seeds: itertools.count[int], scale: Scale) -> float:
    """Jobs a second while some always wait."""
    begun, started = len(server.finished()), time.perf_counter()
    while time.perf_counter() - started < scale.peak_seconds:
        if server.submit(painting(next(seeds), scale.steps, scale.side)).status == 429:
            time.sleep(0.05)
    ended = len(server.finished()) - begun
    seconds = time.perf_counter() - started
    _drained(server)
    return ended / seconds


def _at_rate(server: Served, seeds: itertools.count[int], scale: Scale, rate: float, seconds: float) -> tuple[Load, float]:
    """Send `rate` jobs a second; with what became of them, and how many a second were finished meanwhile."""
    load, lock = Load(), threading.Lock()
    begun, started = len(server.finished()), time.perf_counter()

    def send(number: int) -> None:
        time.sleep(max(0.0, started + number / rate - time.perf_counter()))
        with lock:
            seed = next(seeds)
        answer = server.submit(painting(seed, scale.steps, scale.side))
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
    ended = len(server.finished()) - begun
    goodput = ended / (time.perf_counter() - started)
    _drained(server)
    return load, goodput


def _drained(server: Served) -> None:
    while server.get("/prompt").data["exec_info"]["queue_remaining"]:
        time.sleep(0.05)
