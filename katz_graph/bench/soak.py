"""`katz bench soak`: runs thousands of small jobs through one server, whose memory, descriptors and
processes must not grow.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from katz_graph.bench.result import BenchResult
from katz_graph.testing.server_process import (
    alive,
    carry_out,
    descriptors,
    painting,
    resident,
    serving,
    shared_memory,
)

GROWTH_BOUND = 0.02
ROUND = 100  # jobs between samples of the memory


@dataclass(frozen=True, slots=True)
class Scale:
    jobs: int = 2000
    warm_up: int = 400
    steps: int = 2
    side: int = 64


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    with tempfile.TemporaryDirectory() as name, serving(Path(name)) as server:
        started = time.perf_counter()
        looks = []
        done = 0
        while done < scale.warm_up + scale.jobs:
            count = min(ROUND, scale.warm_up + scale.jobs - done)
            seeds = range(done, done + count)
            carry_out(server, (painting(seed, scale.steps, scale.side, "soak") for seed in seeds))
            done += count
            family = server.family()
            looks.append((done, resident(family), len(descriptors(family)), shared_memory(family)))
        seconds = time.perf_counter() - started
        family = server.family()
        status, ending = server.stop()
        left = alive(family)
    before = next(look for look in looks if look[0] >= scale.warm_up)
    after = looks[-1]
    metrics: dict[str, Any] = {
        "jobs_per_second": done / seconds,
        "memory_after_warm_up": before[1],
        "memory_at_end": after[1],
        "memory_growth": after[1] / before[1] - 1,
        "descriptor_growth": after[2] - before[2],
        "shared_memory_growth": after[3] - before[3],
        "processes_left": len(left),
        "exit_status": status,
        "seconds_to_end": ending,
    }
    bounds = {
        "memory_growth": f"< {GROWTH_BOUND}",
        "descriptor_growth": "<= 0",
        "shared_memory_growth": "<= 0",
        "processes_left": "0",
        "exit_status": "0",
    }
    steady = metrics["descriptor_growth"] <= 0 and metrics["shared_memory_growth"] <= 0
    ok = metrics["memory_growth"] < GROWTH_BOUND and steady and not left and status == 0
    rows = [[number, memory / 2**20, files, shared] for number, memory, files, shared in looks]
    return BenchResult(
        "soak", ok, metrics, bounds, ("jobs", "MiB", "descriptors", "shared memory"), rows
    )
