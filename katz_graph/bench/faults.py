"""`katz bench faults`: kills or freezes workers in the middle of requests, and times detection and
recovery.

Every request has to end with the same bytes as in an undisturbed run. A request that does not use
the lost worker must not be affected. Recovery time runs from the signal to the first completed
evaluation of the new attempt, and includes reloading models. Workers are processes, and also Ray
actors if Ray can run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from katz_graph.bench import faults_on_ray
from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.executor.cluster.worker_handle import WorkerPatience
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.testing.placement import Scale
from katz_graph.testing.worker_faults import (
    FORGIVING,
    LINK,
    SIGNALS,
    FaultTiming,
    Undisturbed,
    inject_faults,
)

DEVICES = ("cpu:0", "cpu:1", "cpu:2")
SCALE = Scale(channels=(32, 48, 64), side=16, steps=16)
KILLED, FROZEN = (sent.name for sent in SIGNALS)
LIMITS = {
    "noticed_killed": 1.0,  # seconds
    "noticed_frozen": 2 * WorkerPatience().frozen,
    "recovered": 5.0,  # with a spare
    "attempts": 2,
    "difference": 0,
    "undisturbed_attempts": 1,
    "undisturbed_difference": 0,
}
COLUMNS = ("seconds until", "noticed, median", "most", "recovered, median", "most")


def run(scale: Scale = SCALE, repeats: int = 5, seed: int = 4) -> BenchResult:
    """Sends each signal `repeats` times to each of two workers, at random evaluations."""
    with quiet(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with DeviceEngine(
            [WorkerConfig(one) for one in DEVICES],
            cache=folder,
            link=LINK,
            spares=True,
            patience=FORGIVING,
        ) as engine:
            timings, undisturbed = inject_faults(engine, folder, scale, repeats, seed)
    figures = {f"spawn_{name}": value for name, value in maxima(timings, undisturbed).items()}
    rows = table("spawn", timings)
    if faults_on_ray.can_run():
        on_ray = faults_on_ray.in_namespaces(scale, repeats, seed)
        figures |= {f"ray_{name}": value for name, value in maxima(on_ray, None).items()}
        rows += table("Ray", on_ray)
        timings = timings + on_ray
    limits = {name: LIMITS[name.split("_", 1)[1]] for name in figures}
    ok = all(value <= limits[name] for name, value in figures.items())
    metrics = {"requests": len(timings), "seed": seed, **figures}
    return BenchResult(
        "faults",
        ok,
        metrics,
        {name: f"<= {limit:g}" for name, limit in limits.items()},
        COLUMNS,
        rows,
    )


def maxima(timings: Sequence[FaultTiming], undisturbed: Undisturbed | None) -> dict[str, Any]:
    """Returns the worst value of every figure with a limit."""
    figures = {
        "noticed_killed": max(one.noticed for one in timings if one.signal == KILLED),
        "noticed_frozen": max(one.noticed for one in timings if one.signal == FROZEN),
        "recovered": max(one.recovered for one in timings),
        "attempts": max(one.attempts for one in timings),
        "difference": max(one.difference for one in timings),
    }
    if undisturbed is not None:
        figures |= {
            "undisturbed_attempts": undisturbed.attempts,
            "undisturbed_difference": undisturbed.difference,
        }
    return figures


def table(launcher: str, timings: Sequence[FaultTiming]) -> list[list[object]]:
    rows: list[list[object]] = []
    for sent, device in dict.fromkeys((one.signal, one.device) for one in timings):
        these = [one for one in timings if (one.signal, one.device) == (sent, device)]
        noticed, recovered = [one.noticed for one in these], [one.recovered for one in these]
        worker = "base" if device.endswith(":0") else "ControlNet"
        rows.append(
            [
                f"{launcher}, {sent}, {worker}",
                median(noticed),
                max(noticed),
                median(recovered),
                max(recovered),
            ]
        )
    return rows
