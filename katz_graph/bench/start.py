"""`katz bench start`: measures the time from the command until the port is open, the first response
arrives and the first picture arrives, for a client that uses the port immediately.

Starts the server 20 times on an otherwise idle machine, and 20 times next to two busy processes.
The server must not refuse a request once its port is open. Times are medians; `processor` is the
CPU time of all processes of the server until the picture.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

from katz_graph.bench.conditions import computing
from katz_graph.bench.result import BenchResult
from katz_graph.testing.comfyui_client import visit
from katz_graph.testing.server_process import Served, total_processor_seconds

PATIENCE = 120.0  # seconds, timeout for the picture
BOUNDS = {"object_info": 5.0, "first_picture": 4.5}  # seconds, median
BUSY = 3.0  # × BOUNDS, next to two busy processes on two CPUs
SIGNATURE = b"\x89PNG"


@dataclass(frozen=True, slots=True)
class Scale:
    starts: int = 20
    busy: int = 20  # starts next to `others`
    others: int = 2  # busy processes


@dataclass(frozen=True, slots=True)
class _Start:
    port: float
    object_info: float
    first_picture: float
    processor: float


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    with tempfile.TemporaryDirectory() as name:
        _started(Path(name), 0)  # measures the device, and reads the files into the page cache
        quiet = [_started(Path(name), number) for number in range(scale.starts)]
        with computing(scale.others):
            busy = [_started(Path(name), number) for number in range(scale.busy)]
    metrics: dict[str, Any] = {
        "starts": len(quiet) + len(busy),
        "without_picture": (quiet + busy).count(None),
    }
    metrics |= _medians("", quiet) | _medians("busy_", busy)
    limits = {"without_picture": 0.0} | {name: bound for name, bound in BOUNDS.items() if quiet}
    limits |= {f"busy_{name}": BUSY * bound for name, bound in BOUNDS.items() if busy}
    ok = all(metrics.get(name, math.inf) <= limit for name, limit in limits.items())
    rows = [[name, value] for name, value in metrics.items()]
    return BenchResult(
        "start",
        ok,
        metrics,
        {name: f"<= {limit:g}" for name, limit in limits.items()},
        ("what", "figure"),
        rows,
    )


def _started(folder: Path, seed: int) -> _Start | None:
    """Starts, uses and stops a server; returns None if it refused a request or timed out."""
    workflow: dict[str, Any] = json.loads(
        files("katz_graph.workflows").joinpath("txt2img.json").read_text()
    )
    for node in workflow.values():
        node["inputs"] |= {"seed": seed} if "seed" in node["inputs"] else {}
    server, began = Served(folder), time.perf_counter()
    server.start(wait=False)
    try:
        seen = visit("127.0.0.1", server.port, workflow, began, PATIENCE)
        assert seen.picture.startswith(SIGNATURE)
        processor = sum(map(total_processor_seconds, server.family()))
        server.stop()
    except OSError:  # includes HTTPError and TimeoutError
        return None
    finally:
        server.kill()
    return _Start(seen.port, seen.object_info, seen.first_picture, processor)


def _medians(prefix: str, starts: Sequence[_Start | None]) -> dict[str, float]:
    there = [start for start in starts if start is not None]
    if not there:
        return {}
    medians = {
        f"{prefix}{name}": median(getattr(start, name) for start in there)
        for name in _Start.__slots__
    }
    return medians | {f"{prefix}slowest_picture": max(start.first_picture for start in there)}
