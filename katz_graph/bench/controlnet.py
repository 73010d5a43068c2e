"""`katz bench controlnet`: a ControlNet on a second worker, guidance off: against the plan's prediction, and against the ideal speed-up.

Two workers of one thread each: the UNet on one, the ControlNet on the other. The ideal is made of stage times that were measured while the
other worker was equally busy: one worker's stages alone, one after the other, over encoder and mid or ControlNet busy, the longer of the
two, and the decoder alone, as nothing is left for the other worker then.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from katz_graph.bench.parity import difference
from katz_graph.bench.placed import COLUMNS, Models, Scale, Stages, Track, pins, plan, reference, seconds_of, take_turns
from katz_graph.bench.quiet import quiet
from katz_graph.bench.requests import bare_context
from katz_graph.bench.result import BenchResult
from katz_graph.executor.assignment import Assignment
from katz_graph.executor.cluster_engine import ClusterEngine
from katz_graph.planner.program import Program

PREDICTION_BOUND, IDEAL_BOUND = 0.10, 0.93


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    with quiet(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        region = Models.make(folder, scale).request(scale, guidance=1.0)
        expected = reference(region)
        with (
            ClusterEngine([Assignment("cpu:0"), Assignment("cpu:1")], cache=folder) as pair,
            ClusterEngine([Assignment("cpu:0", threads=2)], cache=folder) as wide,
        ):
            stages = Stages(pair.profile(region, bare_context(pair)))
            wide.profile(region, bare_context(wide))
            one = Track("one worker, one thread", pair, plan(pair, region, pins("cpu:0", "cpu:0")))
            two = Track("two workers, one thread each", pair, plan(pair, region, pins("cpu:0", "cpu:1")))
            threads = Track("one worker, two threads", wide, plan(wide, region))
            take_turns((one, two, threads), scale.runs)
    speedup = median(one.sampling) / median(two.sampling)
    ideal = ideal_speedup(one.program, two.program, stages)
    share, moved = speedup / ideal, difference(two.outcomes[-1].samples, expected)
    prediction = two.program.prediction
    assert prediction is not None  # the program went through all passes
    error = abs(median(two.whole) / prediction.planned - 1)
    metrics = {
        "seconds": median(two.whole),
        "least_and_most_seconds": [min(two.whole), max(two.whole)],
        "predicted_seconds": prediction.planned,
        "prediction_error": error,
        "one_worker_seconds": median(one.whole),
        "two_threads_seconds": median(threads.whole),
        "ideal_seconds": prediction.ideal,
        "sequential_seconds": prediction.sequential,
        "speedup": speedup,
        "ideal_speedup": ideal,
        "share_of_ideal": share,
        "difference": moved,
        "stages": stages.metrics,
        "binding": prediction.binding,
    }
    bounds = {"prediction_error": f"<= {PREDICTION_BOUND}", "share_of_ideal": f">= {IDEAL_BOUND}", "difference": "0"}
    ok = error <= PREDICTION_BOUND and share >= IDEAL_BOUND and moved == 0
    rows = [*stages.rows(), *(track.row() for track in (one, two, threads)), ["ideal", prediction.ideal, "", "", ""]]
    return BenchResult("controlnet", ok, metrics, bounds, COLUMNS, rows)


def ideal_speedup(one: Program, two: Program, stages: Stages) -> float:
    """Of one evaluation, with free communication: `one` on one worker, `two` with the ControlNet on another."""
    before = seconds_of(two, stages.busy, stages=("unet_encoder", "unet_mid"))
    beside = seconds_of(two, stages.busy, stages=("controlnet",))
    after = seconds_of(two, stages.alone, stages=("unet_decoder",))
    return seconds_of(one, stages.alone) / (max(before, beside) + after)
