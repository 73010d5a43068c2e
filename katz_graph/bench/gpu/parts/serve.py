"""Measures a server's pictures: one client that waits for each, and 1, 4 and 8 clients at once,
with the share of time in which the GPU computes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from katz_graph.bench.gpu.busy import Busy
from katz_graph.bench.gpu.clients import paint, served
from katz_graph.bench.gpu.originals import Originals, originals
from katz_graph.bench.gpu.peers import OURS, compare, starts
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.testing.comfyui_client import session
from katz_graph.testing.server_process import Served

CLIENTS = (1, 4, 8)
JUDGED = 4  # clients whose rate has a bound
PICTURE_BOUND = 0.80  # seconds
BOUNDS = {"largest": (1.35, 0.92), "smallest": (3.3, 0.85)}
"""Minimum pictures per second and busy share, at the largest and the smallest size."""


def run(setting: Setting, rows: Rows, peer: Path | None = None) -> BenchResult:
    figures: defaultdict[str, dict[str, float]] = defaultdict(dict)  # by what, then by server
    with originals(setting, rows.folder) as files:
        for name, start in starts(setting, files, peer).items():
            with served(start, setting, files) as (server, seeds):
                picture = _alone(setting, files, server, seeds, rows, name, figures)
                if name == OURS:
                    rows.judge("a picture, seconds", picture, at_most=PICTURE_BOUND)
                sides = {"largest": setting.sides[0], "smallest": setting.sides[-1]}
                for size, side in sides.items():
                    for clients in CLIENTS:
                        rate, busy = _together(setting, files, server, seeds, side, clients)
                        what = f"{clients} clients at {8 * side} pixels"
                        rows.add(f"{what}, {name}", pictures_per_second=rate, busy=busy)
                        figures[f"{what}, pictures per second"][name] = rate
                        if name == OURS and clients == JUDGED:
                            least_rate, least_busy = BOUNDS[size]
                            rows.judge(f"{what}, pictures per second", rate, at_least=least_rate)
                            share = math.nan if busy is None else busy
                            rows.judge(f"{what}, busy share", share, at_least=least_busy)
    compare(rows, figures)
    return rows.result()


def _alone(
    setting: Setting,
    files: Originals,
    server: Served,
    seeds: Iterator[int],
    rows: Rows,
    name: str,
    figures: dict[str, dict[str, float]],
) -> float:
    """Returns the seconds of a picture. Adds a row with those of a step, from two numbers of steps,
    and of everything else.
    """
    took = {}
    with session("127.0.0.1", server.port) as client:
        for steps in (setting.steps, setting.steps // 2):
            prompts = [
                files.workflow(setting.sides[0], steps, next(seeds)) for _ in range(setting.rounds)
            ]
            took[steps] = median(paint(client, prompt) for prompt in prompts)
    whole = took[setting.steps]
    step = (whole - took[setting.steps // 2]) / (setting.steps - setting.steps // 2)
    found = {"seconds": whole, "step_seconds": step, "other_seconds": whole - setting.steps * step}
    rows.add(f"a picture, {name}", **found)
    for figure, value in found.items():
        figures[f"a picture, {figure}"][name] = value
    return whole


def _together(
    setting: Setting,
    files: Originals,
    server: Served,
    seeds: Iterator[int],
    side: int,
    clients: int,
) -> tuple[float, float | None]:
    """Returns the pictures per second that clients get, each waiting for one at a time, and the
    busy share of the device. Ignores the first `setting.lead` seconds. Figures without a bound get
    half of the time.
    """
    begins = time.perf_counter() + setting.lead
    ends = begins + setting.window / (1 if clients == JUDGED else 2)
    lock = threading.Lock()

    def client() -> list[float]:
        done = []
        with session("127.0.0.1", server.port) as watched:
            while time.perf_counter() < ends:
                with lock:
                    seed = next(seeds)
                paint(watched, files.workflow(side, setting.steps, seed))
                done.append(time.perf_counter())
        return done

    with ThreadPoolExecutor(clients) as pool:
        painting = [pool.submit(client) for _ in range(clients)]
        time.sleep(max(0.0, begins - time.perf_counter()))
        with Busy(setting.device) as busy:
            time.sleep(max(0.0, ends - time.perf_counter()))
        times = [one for future in painting for one in future.result()]
    return _rate([one for one in times if begins <= one <= ends]), busy.share


def _rate(times: list[float]) -> float:
    """Returns the events per second between the first and the last, 0 for fewer than two."""
    if len(times) < 2:
        return 0.0
    return (len(times) - 1) / (max(times) - min(times))
