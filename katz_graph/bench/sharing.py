"""`katz bench sharing`: runs two requests at once, each with its network on a separate worker, and
both with the same ControlNet worker.

Each request has two ControlNets and one branch, so that a request always waits for the shared
worker. Both have to give the same picture as one device. While both run, the shared worker has to
spend the same time on each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.executor.cluster.requests import Outcome
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.testing.model_files import difference
from katz_graph.testing.placement import COLUMNS, Models, Scale, Track, pins, plan, reference

SPLIT_BOUND = 0.10
BASES, SHARED = ("cpu:0", "cpu:1"), "cpu:2"
CONTROLS = 2


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale(steps=40, runs=3)  # one evaluation is 1/40 of a request
    with quiet(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = Models.make(folder, scale, CONTROLS)
        regions = [
            models.request(scale, guidance=1.0, controls=CONTROLS, seed=seed) for seed in (7, 8)
        ]
        expected = [reference(region) for region in regions]
        with DeviceEngine(
            [WorkerConfig(device) for device in (*BASES, SHARED)], cache=folder
        ) as engine:
            tracks = [
                Track(
                    f"request on {base}, at once",
                    engine,
                    partial(plan, engine, region, pins(base, SHARED)),
                )
                for base, region in zip(BASES, regions, strict=True)
            ]
            apart, together = _rounds(tracks, scale.runs)
    outcomes = [track.outcomes for track in tracks]
    shares = [service(pair) for pair in zip(*outcomes, strict=True)]
    uneven = median(max(pair) / min(pair) - 1 for pair in shares)
    moved = max(
        difference(outcome.samples, picture)
        for track, picture in zip(outcomes, expected, strict=True)
        for outcome in track
    )
    attempts = max(outcome.attempts for track in outcomes for outcome in track)
    metrics = {
        "requests_per_second": len(tracks) / median(together),
        "requests_per_second_in_turn": len(tracks) / median(apart),
        "uneven": uneven,
        "service_seconds": [median(seconds) for seconds in zip(*shares, strict=True)],
        "difference": moved,
        "attempts": attempts,
    }
    bounds = {"uneven": f"<= {SPLIT_BOUND}", "difference": "0", "attempts": "1"}
    ok = uneven <= SPLIT_BOUND and moved == 0 and attempts == 1
    rows = [track.row() for track in tracks]
    rows += [
        [f"both, {how}", "", median(times), min(times), max(times)]
        for how, times in (("in turn", apart), ("at once", together))
    ]
    return BenchResult("sharing", ok, metrics, bounds, COLUMNS, rows)


def _rounds(tracks: Sequence[Track], runs: int) -> tuple[list[float], list[float]]:
    """Times all requests sequentially, and concurrently; the tracks record the concurrent outcomes.
    An additional first round loads the models.
    """
    apart, together = [], []
    with ThreadPoolExecutor(len(tracks)) as pool:
        for number in range(runs + 1):
            started = time.perf_counter()
            for track in tracks:
                track.warm_up()
            between = time.perf_counter()
            list(pool.map(Track.run if number else Track.warm_up, tracks))
            if number:
                apart.append(between - started)
                together.append(time.perf_counter() - between)
    return apart, together


def service(outcomes: Sequence[Outcome]) -> list[float]:
    """Returns the seconds that the shared worker spent on the evaluations of each request, until
    one request had completed all its evaluations.
    """
    served = [
        [span for span in outcome.timings[SHARED].spans if span.evaluation is not None]
        for outcome in outcomes
    ]
    end = min(spans[-1].start + spans[-1].seconds for spans in served)
    return [
        sum(max(0.0, min(span.start + span.seconds, end) - span.start) for span in spans)
        for spans in served
    ]
