"""`katz bench overlap`: measures how far a server samples one job while it saves the results of
another.

The jobs' last node takes as long as their sampling, and computes nothing, like an upload. Compares
two clients with the same jobs one after another, a lone job with one in a server that has one job
at a time, and the sampling of the first job of several with its sampling alone.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from textwrap import dedent
from typing import Any

from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.testing.server_process import Served, painting, serving

GAIN_BOUND = 1.8
LONE_BOUND = 1.02  # × the seconds of a lone job in a server with one job at a time
FIRST_BOUND = 1.02  # × the seconds alone
PACK = """
    import time

    from katz_graph.node import Node
    from katz_graph.node.wires import Image


    class SaveSlowly(Node, category="image", output=True):
        seconds: float = 1.0

        def run(self, images: Image) -> None:
            time.sleep(self.seconds)
"""


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the size of the bench."""

    steps: int = 60
    side: int = 112
    jobs: int = 20  # of both clients
    runs: int = 5  # lone jobs


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    with tempfile.TemporaryDirectory() as name, quiet():
        folder = Path(name)
        packs = folder / "packs"
        packs.mkdir()
        (packs / "slow.py").write_text(dedent(PACK))
        options = ("--packs", str(packs), "--threads", "1")
        with serving(folder / "one", *options, "--jobs-at-once", "1", cache=folder) as server:
            sampling = median(_spent(server, scale, 0.0, seed) for seed in range(1 + scale.runs))
            single = [_spent(server, scale, sampling, 100 + seed) for seed in range(scale.runs)]
        with serving(folder / "several", *options, cache=folder) as server:
            _spent(server, scale, 0.0, 200)  # loads
            lone = [_spent(server, scale, sampling, 201 + seed) for seed in range(scale.runs)]
            began = time.perf_counter()
            _together(server, scale, sampling, 300, scale.jobs)
            together = time.perf_counter() - began
            first = [
                _together(server, scale, sampling, 400 + 10 * number, 3)
                for number in range(scale.runs)
            ]
    metrics: dict[str, Any] = {
        "sampling_seconds": sampling,
        "lone_seconds": median(lone),
        "gain": scale.jobs * median(lone) / together,
        "lone_of_single": median(lone) / median(single),
        "first_of_alone": median(first) / median(lone),
    }
    bounds = {
        "gain": f">= {GAIN_BOUND}",
        "lone_of_single": f"<= {LONE_BOUND}",
        "first_of_alone": f"<= {FIRST_BOUND}",
    }
    ok = (
        metrics["gain"] >= GAIN_BOUND
        and metrics["lone_of_single"] <= LONE_BOUND
        and metrics["first_of_alone"] <= FIRST_BOUND
    )
    rows = [[what, value] for what, value in metrics.items()]
    return BenchResult("overlap", ok, metrics, bounds, ("what", "figure"), rows)


def _submit(server: Served, scale: Scale, seconds: float, seed: int, client: str) -> str:
    graph = painting(seed, scale.steps, scale.side)
    graph["7"] = {"class_type": "SaveSlowly", "inputs": {"images": ["6", 0], "seconds": seconds}}
    identifier: str = server.submit(graph, client_id=client).data["prompt_id"]
    return identifier


def _together(server: Served, scale: Scale, seconds: float, seed: int, jobs: int) -> float:
    """Runs jobs of two clients; returns the seconds of the first one."""
    ids = [
        _submit(server, scale, seconds, seed + number, f"client {number % 2}")
        for number in range(jobs)
    ]
    return _duration(server.wait_for(ids, 60 + 4 * jobs * seconds)[ids[0]])


def _spent(server: Served, scale: Scale, seconds: float, seed: int) -> float:
    """Returns the seconds of a job that runs alone."""
    identifier = _submit(server, scale, seconds, seed, "alone")
    return _duration(server.wait_for([identifier], 120)[identifier])


def _duration(entry: dict[str, Any]) -> float:
    """Returns the seconds from the start of a job to its end."""
    messages = entry["status"]["messages"]
    began, ended = (messages[end][1]["timestamp"] for end in (0, -1))
    return float(ended - began) / 1000
