"""`katz bench crash`: kills a server with jobs in its queue again and again. Each job has to end
exactly once, with the same bytes as in an undisturbed run.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from katz_graph.bench.result import BenchResult
from katz_graph.testing.server_process import Served, alive, painting, serving

# seconds, timeout for the remaining processes of a killed server; their cleanup may take five
PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Scale:
    jobs: int = 30
    kills: int = 20
    steps: int = 12
    side: int = 64
    seed: int = 1
    longest: float = 4.0  # seconds, maximum time from a server's start to its kill
    patience: float = 300.0  # seconds, timeout for all jobs after the last kill


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    draw = random.Random(scale.seed)
    prompts = [painting(seed, scale.steps, scale.side) for seed in range(scale.jobs)]
    with tempfile.TemporaryDirectory() as name:
        expected = _undisturbed(Path(name) / "undisturbed", prompts, scale.patience)
        server = Served(Path(name) / "killed", "--queue-limit", str(scale.jobs))
        starts: list[float] = []
        left: list[int] = []
        exit_seconds: list[float] = []
        with server:
            ids = [server.submit(prompt).data["prompt_id"] for prompt in prompts]
            for _ in range(scale.kills):
                time.sleep(draw.uniform(0.0, scale.longest))
                family = server.family()
                server.kill()
                rest, seconds = _remaining(family)
                left += rest
                exit_seconds.append(seconds)
                server.start(wait=False)
                if draw.random() < 0.75:  # otherwise the server is killed during its start
                    starts.append(server.wait_until_ready())
            server.wait_until_ready()
            history = server.wait_for(ids, scale.patience)
            ended = [history[identifier] for identifier in ids]
            wrong = [entry for entry in ended if entry["status"]["status_str"] != "success"]
            pictures = [server.pictures(entry) for entry in ended]
            pending = server.get("/queue").data
            files = sorted(path.name for path in (server.folder / "output").glob("*.png"))
            status, _ = server.stop()
    metrics: dict[str, Any] = {
        "jobs": scale.jobs,
        "kills": scale.kills,
        "ended_well": len(ended) - len(wrong),
        "more_in_history": len(history) - len(ids),
        "still_queued": len(pending["queue_running"]) + len(pending["queue_pending"]),
        "other_bytes": sum(
            made != [picture] for made, picture in zip(pictures, expected, strict=True)
        ),
        "files": len(files),
        "processes_left": len(left),
        "seconds_to_be_gone": max(exit_seconds),
        "seconds_to_ready": median(starts) if starts else None,
        "exit_status": status,
    }
    wanted = {
        "ended_well": scale.jobs,
        "more_in_history": 0,
        "still_queued": 0,
        "other_bytes": 0,
        "files": scale.jobs,
        "processes_left": 0,
        "exit_status": 0,
    }
    ok = all(metrics[name] == value for name, value in wanted.items())
    rows = [[name, value] for name, value in metrics.items()]
    return BenchResult(
        "crash",
        ok,
        metrics,
        {name: str(value) for name, value in wanted.items()},
        ("what", "figure"),
        rows,
    )


def _undisturbed(folder: Path, prompts: list[dict[str, Any]], patience: float) -> list[bytes]:
    with serving(folder, "--queue-limit", str(len(prompts))) as server:
        ids = [server.submit(prompt).data["prompt_id"] for prompt in prompts]
        history = server.wait_for(ids, patience)
        pictures = [server.pictures(history[identifier]) for identifier in ids]
        server.stop()
    return [picture for (picture,) in pictures]


def _remaining(family: list[int]) -> tuple[list[int], float]:
    """Waits until all processes of a killed server have ended, at most PATIENCE. Returns the
    survivors, and the seconds waited.
    """
    started = time.perf_counter()
    while (rest := alive(family)) and time.perf_counter() - started < PATIENCE:
        time.sleep(0.02)
    return rest, time.perf_counter() - started
