"""`katz bench controlnet`: compares the speed-up of a ControlNet on a second worker with the plan's
prediction and with the ideal speed-up. Requests have no guidance.

Two workers with one thread each run the network and the ControlNet. The ideal speed-up follows from
measured stage times. Its numerator is the sequential time of all stages on one worker. Its
denominator is the time of the encoder with mid block or of the ControlNet, whichever is longer,
plus the time of the decoder. Encoder and ControlNet are measured while the other worker is busy;
the decoder is measured alone, because the other worker idles then. Every round measures the stages,
plans and runs; shares and errors are computed per round. For comparison, the bench reports the
share that a bare loop of two processes reaches: the machine's limit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

from katz_graph.bench.bare import Bare
from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.program import Program
from katz_graph.testing.model_files import difference
from katz_graph.testing.placement import (
    COLUMNS,
    NETWORK,
    Models,
    Scale,
    Stages,
    Track,
    middle,
    pins,
    plan,
    reference,
    seconds_of,
    share,
    speedups,
    take_turns,
)
from katz_graph.testing.requests import bare_context

PREDICTION_BOUND, IDEAL_BOUND = 0.10, 0.93


def run(scale: Scale | None = None) -> BenchResult:
    # 512 px; 20 steps, as usual in a KSampler
    scale = scale or Scale(side=64, steps=20, runs=7)
    with quiet(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = Models.make(folder, scale)
        region, profiled = models.request(scale, guidance=1.0), models.profiled(scale, guidance=1.0)
        expected = reference(region)
        with (
            DeviceEngine([WorkerConfig("cpu:0"), WorkerConfig("cpu:1")], cache=folder) as pair,
            Bare(models, scale, controls=1) as bare,
        ):
            one = Track(
                "one worker, one thread", pair, lambda: plan(pair, region, pins("cpu:0", "cpu:0"))
            )
            two = Track(
                "two workers, one thread each",
                pair,
                lambda: plan(pair, region, pins("cpu:0", "cpu:1")),
            )
            stages, bare_speedups = take_turns(
                (one, two),
                scale.runs,
                lambda: Stages(pair.profile(profiled, bare_context(pair))),
                lambda: bare.seconds(1, None) / bare.seconds(1, "controlnet"),
            )
        # after the two workers have released the CPUs
        with DeviceEngine([WorkerConfig("cpu:0", threads=2)], cache=folder) as wide:
            wide.profile(profiled, bare_context(wide))
            threads = Track("one worker, two threads", wide, lambda: plan(wide, region))
            threads.warm_up()
            for _ in range(scale.runs):
                threads.run()
    gained = speedups(one, two)
    ideals = [
        ideal_speedup(*of_round)
        for of_round in zip(one.programs, two.programs, stages, strict=True)
    ]
    reached = share(gained, ideals)
    moved = max(difference(outcome.samples, expected) for outcome in two.outcomes)
    prediction = two.program.prediction
    assert prediction is not None  # the program went through all passes
    metrics = {
        "seconds": median(two.whole),
        "least_and_most_seconds": [min(two.whole), max(two.whole)],
        "predicted_seconds": median(two.planned),
        "prediction_error": two.error,
        "one_worker_seconds": median(one.whole),
        "two_threads_seconds": median(threads.whole),
        "ideal_seconds": prediction.ideal,
        "sequential_seconds": prediction.sequential,
        "speedup": median(gained),
        "ideal_speedup": median(ideals),
        "share_of_ideal": reached,
        "share_of_ideal_of_a_bare_loop": share(bare_speedups, ideals),
        "difference": moved,
        "stages": middle(stages).metrics,
        "binding": prediction.binding,
    }
    bounds = {
        "prediction_error": f"<= {PREDICTION_BOUND}",
        "share_of_ideal": f">= {IDEAL_BOUND}",
        "difference": "0",
    }
    ok = two.error <= PREDICTION_BOUND and reached >= IDEAL_BOUND and moved == 0
    rows = [
        *middle(stages).rows(),
        *(track.row() for track in (one, two, threads)),
        ["ideal", prediction.ideal, "", "", ""],
    ]
    return BenchResult("controlnet", ok, metrics, bounds, COLUMNS, rows)


def ideal_speedup(one: Program, two: Program, stages: Stages) -> float:
    """Returns the speed-up of an evaluation with free communication, from program `one` on one
    worker to program `two` with the ControlNet on a second worker.
    """
    *encoding, decoder = NETWORK
    before = seconds_of(two, stages.busy, stages=tuple(encoding))
    together = seconds_of(two, stages.busy, stages=("controlnet",))
    after = seconds_of(two, stages.alone, stages=(decoder,))
    return seconds_of(one, stages.alone) / (max(before, together) + after)
