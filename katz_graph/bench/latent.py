"""`katz bench latent`: compares the speed-up of running the two branches of guidance on two workers
with the ideal speed-up, with and without a ControlNet.

The ideal speed-up follows from measured stage times. Its numerator is the sequential time of all
calls on one worker (batched if the planner finds that faster). Its denominator is the time of the
calls on the worker with more work, measured while the other worker is equally busy. Every round
measures the stages, plans and runs; shares are computed per round. For comparison, the bench
reports the share that a bare loop of two processes reaches of its ideal: the machine's limit. Four
workers, planned as if each had a separate core, have to give the same picture.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from torch import Tensor

from katz_graph.bench.bare import Bare
from katz_graph.bench.conditions import quiet
from katz_graph.bench.parity import BOUND
from katz_graph.bench.result import BenchResult
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.testing.model_files import difference
from katz_graph.testing.placement import (
    COLUMNS,
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

IDEAL_BOUND = 0.95
GUIDANCE = 5.0
KINDS = {"plain": 0, "controlnet": 1}  # numbers of ControlNets
FREE = NetworkLink(bytes_per_second=1e12)


@dataclass(frozen=True, slots=True)
class Measured:
    """Holds the measurements of one kind of request, on one worker and on two."""

    one: Track
    two: Track
    stages: Sequence[Stages]  # by round
    bare: Sequence[float]  # speed-up of two processes without the engine, by round
    expected: Tensor

    @property
    def metrics(self) -> Mapping[str, float]:
        gained = speedups(self.one, self.two)
        ideals = [
            ideal_speedup(*of_round)
            for of_round in zip(self.one.programs, self.two.programs, self.stages, strict=True)
        ]
        return {
            "seconds": median(self.two.whole),
            "predicted_seconds": median(self.two.planned),
            "one_worker_seconds": median(self.one.whole),
            "speedup": median(gained),
            "ideal_speedup": median(ideals),
            "share_of_ideal": share(gained, ideals),
            "share_of_ideal_of_a_bare_loop": share(self.bare, [*map(bare_ideal, self.stages)]),
            "devices": min(len(set(program.placement.values())) for program in self.two.programs),
            "difference": max(
                difference(outcome.samples, self.expected) for outcome in self.two.outcomes
            ),
        }


def run(scale: Scale | None = None) -> BenchResult:
    # 512 px; 20 steps, as usual in a KSampler
    scale = scale or Scale(side=64, steps=20, runs=7)
    with quiet(), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = Models.make(folder, scale)
        regions = {
            kind: models.request(scale, GUIDANCE, controls) for kind, controls in KINDS.items()
        }
        expected = {kind: reference(region) for kind, region in regions.items()}
        with DeviceEngine([WorkerConfig("cpu:0"), WorkerConfig("cpu:1")], cache=folder) as pair:
            measured = {
                kind: _measure(kind, pair, models, region, expected[kind], scale)
                for kind, region in regions.items()
            }
        four = _four_workers(folder, regions["controlnet"])
    metrics = {
        f"{kind}_{name}": value
        for kind, found in measured.items()
        for name, value in found.metrics.items()
    }
    metrics["four_workers_devices"] = len(set(four.program.placement.values()))
    metrics["four_workers_difference"] = difference(
        four.outcomes[-1].samples, expected["controlnet"]
    )
    bounds = {f"{kind}_share_of_ideal": f">= {IDEAL_BOUND}" for kind in KINDS}
    bounds |= {f"{kind}_devices": "2" for kind in KINDS} | {"four_workers_devices": "4"}
    bounds |= {name: f"<= {BOUND}" for name in metrics if name.endswith("difference")}
    ok = (
        all(
            metrics[f"{kind}_share_of_ideal"] >= IDEAL_BOUND and metrics[f"{kind}_devices"] == 2
            for kind in KINDS
        )
        and metrics["four_workers_devices"] == 4
        and all(value <= BOUND for name, value in metrics.items() if name.endswith("difference"))
    )
    rows = [row for found in measured.values() for row in (found.one.row(), found.two.row())]
    return BenchResult(
        "latent",
        ok,
        metrics,
        bounds,
        COLUMNS,
        [*middle(measured["controlnet"].stages).rows(), *rows, four.row()],
    )


def _measure(
    kind: str, engine: DeviceEngine, models: Models, region: Region, expected: Tensor, scale: Scale
) -> Measured:
    one = Track(f"{kind}, one worker", engine, lambda: plan(engine, region, pins("cpu:0", "cpu:0")))
    two = Track(f"{kind}, two workers", engine, lambda: plan(engine, region))
    profiled = models.profiled(scale, GUIDANCE, KINDS[kind])
    with Bare(models, scale, KINDS[kind]) as bare:
        stages, gained = take_turns(
            (one, two),
            scale.runs,
            lambda: Stages(engine.profile(profiled, bare_context(engine))),
            lambda: bare.seconds(2, None) / bare.seconds(2, "branch"),
        )
    return Measured(one, two, stages, gained, expected)


def _four_workers(folder: Path, region: Region) -> Track:
    """Runs once on four workers. The plan uses all four on any machine, because it assumes separate
    hosts and free links.
    """
    with DeviceEngine(
        [WorkerConfig(f"cpu:{number}") for number in range(4)], cache=folder, link=FREE
    ) as engine:
        apart = [
            replace(device, host=device.name, measured={}) for device in engine.cluster.devices
        ]
        track = Track(
            "controlnet, four workers",
            engine,
            lambda: plan(engine, region, batching=False, devices=apart),
        )
        track.run()
        return track


def ideal_speedup(one: Program, two: Program, stages: Stages) -> float:
    """Returns the speed-up of an evaluation with free communication, from program `one` on one
    worker to program `two`, whose busier worker never waits.
    """
    devices = set(two.placement.values())
    return seconds_of(one, stages.alone) / max(
        seconds_of(two, stages.busy, device) for device in devices
    )


def bare_ideal(stages: Stages) -> float:
    """Returns the ideal speed-up of two unbatched branches on two workers."""
    alone, busy = stages.single_calls()
    return 2 * alone / busy
