"""`katz bench streaming`: compares the speed-up of a transformer's ControlNet on a second worker
with the plan's prediction and the ideal speed-up. Then uses a link too slow for this placement.
Requests have no guidance.

The transformer and its ControlNet run on two workers with one thread each. The ControlNet sends
each residual while its next block runs. The ideal time is the critical path through both, from
stage times measured while the other worker is equally busy; after the ControlNet ends, from stage
times measured while the other worker is idle. Every round measures the stages, plans and runs;
shares and errors are computed per round. If sending the residuals takes three evaluations, the
planner has to place the ControlNet with the transformer, and this has to be faster.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import networkx

from katz_graph.bench.conditions import quiet
from katz_graph.bench.pipeline import residual_bytes
from katz_graph.bench.result import BenchResult
from katz_graph.bench.wire import BASE, CONTROL, engine_over, wire
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import Region
from katz_graph.ir.tree import Tree
from katz_graph.planner.passes.decompose import dependencies
from katz_graph.planner.queries import commonest_variant
from katz_graph.testing.model_files import difference
from katz_graph.testing.placement import (
    COLUMNS,
    Models,
    Pins,
    Scale,
    Track,
    plan,
    reference,
    share,
    speedups,
    take_turns,
)
from katz_graph.testing.random_models import kinds, make_controlnet, make_pipeline, playing
from katz_graph.testing.requests import bare_context

NETWORK = ("transformer_embed", "transformer_blocks", "transformer_head")
CONTROLNET = ("transformer_control", "transformer_control_block")
PREDICTION_BOUND, IDEAL_BOUND = 0.05, 0.95
# seconds to send the residuals / seconds of an evaluation on one worker; at 1.5, streaming some of
# the blocks may still be faster
SLOW = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """Sets the size of the models."""

    heads: int = 6  # of 64 channels
    blocks: int = 12  # of the transformer
    control_blocks: int = 6  # of the ControlNet

    def make(self, folder: Path, side: int) -> Models:
        """Writes a pipeline and its ControlNet, of the kind with streamed residuals."""
        (kind,) = playing("streamed")
        sizes = kinds()[kind].widened(self.heads, side)
        make_pipeline(folder / "pipeline", kind, 1, self.blocks, False, **sizes)
        make_controlnet(folder / "control", kind, 2, self.control_blocks, **sizes)
        return Models(folder / "pipeline", (folder / "control",), latent_channels=16)


def run(scale: Scale | None = None, shape: Shape | None = None) -> BenchResult:
    scale = scale or Scale(side=32, steps=10, runs=7)  # 256 px: a block takes about 15 ms
    with quiet(), tempfile.TemporaryDirectory() as name, wire() as link:
        folder = Path(name)
        models = (shape or Shape()).make(folder, scale.side)
        region, profiled = models.request(scale, guidance=1.0), models.profiled(scale, guidance=1.0)
        with DeviceEngine([WorkerConfig("cpu:0"), WorkerConfig("cpu:1")], cache=folder) as pair:
            fast = compare(pair, region, profiled, scale.runs)
        with engine_over(folder, link) as engine:
            engine.profile(profiled, bare_context(engine))
            slow = behind_slow_link(engine, region, link.shape, scale.runs)
    metrics, rows = fast.metrics | slow.metrics, [*fast.rows, *slow.rows]
    bounds = {
        "prediction_error": f"<= {PREDICTION_BOUND}",
        "share_of_ideal": f">= {IDEAL_BOUND}",
        "difference": "0",
        "kept_local": "True",
        "apart_over_local": "> 1",
    }
    ok = (
        metrics["prediction_error"] <= PREDICTION_BOUND
        and metrics["share_of_ideal"] >= IDEAL_BOUND
        and metrics["difference"] == 0
        and metrics["kept_local"]
        and metrics["apart_over_local"] > 1
    )
    return BenchResult("streaming", ok, metrics, bounds, COLUMNS, rows, notes=slow.notes)


@dataclass(frozen=True, slots=True)
class Part:
    """Holds the results of one part of the bench."""

    metrics: dict[str, Any]
    rows: list[list[object]]
    notes: tuple[str, ...] = ()


def compare(engine: DeviceEngine, region: Region, profiled: Region, runs: int) -> Part:
    """Compares two workers with one worker and with the prediction. `profiled`: request for
    measuring the stages.
    """
    expected = reference(region)
    one = Track(
        "one worker, one thread", engine, lambda: plan(engine, region, pins("cpu:0", "cpu:0"))
    )
    two = Track(
        "two workers, one thread each", engine, lambda: plan(engine, region, pins("cpu:0", "cpu:1"))
    )
    take_turns(
        (one, two), runs, lambda: engine.profile(profiled, bare_context(engine)), lambda: None
    )
    gained, rounds = speedups(one, two), list(zip(one.programs, two.programs, strict=True))
    ideals = [ideal_speedup(before, after) for before, after in rounds]
    all_busy = [ideal_speedup(before, after, all_busy=True) for before, after in rounds]
    prediction = two.program.prediction
    assert prediction is not None  # the program went through all passes
    metrics = {
        "seconds": median(two.whole),
        "least_and_most_seconds": [min(two.whole), max(two.whole)],
        "predicted_seconds": median(two.planned),
        "prediction_error": two.error,
        "one_worker_seconds": median(one.whole),
        "one_worker_prediction_error": one.error,
        "speedup": median(gained),
        "ideal_speedup": median(ideals),
        "share_of_ideal": share(gained, ideals),
        "share_where_all_is_busy": share(gained, all_busy),
        "difference": max(
            difference(outcome.samples, expected) for outcome in (*one.outcomes, *two.outcomes)
        ),
        "chose_two_workers": len(plan(engine, region).instructions) == 2,
        "stages": {
            stage: {how: median(times) for how, times in measured.items()}
            for stage, measured in by_stage(two.programs).items()
        },
        "binding": prediction.binding,
    }
    stage_rows: list[list[object]] = [
        [f"{stage} {how}", "", median(times), min(times), max(times)]
        for stage, measured in by_stage(two.programs).items()
        for how, times in measured.items()
    ]
    return Part(metrics, [*stage_rows, one.row(), two.row()])


def behind_slow_link(
    engine: DeviceEngine, region: Region, shape: Callable[[float], None], runs: int
) -> Part:
    """Compares both placements on the workers BASE and CONTROL over a slow link, and reports the
    planner's choice. `shape` limits the link to a number of bytes per second.
    """
    local = Track("slow link, one worker", engine, lambda: plan(engine, region, pins(BASE, BASE)))
    apart = Track(
        "slow link, two workers", engine, lambda: plan(engine, region, pins(BASE, CONTROL))
    )
    size, known = residual_bytes(apart.plan()), local.plan().prediction
    assert known is not None  # the program went through all passes
    shape(size / (SLOW * known.period))
    engine.cluster.links = engine.measured_links()
    chosen = plan(engine, region)
    take_turns((local, apart), runs, lambda: None, lambda: None)
    metrics = {
        "residual_bytes": size,
        "slow_bytes_per_second": engine.cluster.links[CONTROL, BASE].bytes_per_second,
        "kept_local": len(chosen.instructions) == 1,
        "local_seconds": median(local.whole),
        "apart_seconds": median(apart.whole),
        "apart_prediction_error": apart.error,
        "apart_over_local": median(speedups(apart, local)),
    }
    return Part(metrics, [local.row(), apart.row()], chosen.notes)


def pins(network: str, control_net: str) -> Pins:
    """Pins the whole transformer to one device, the whole ControlNet to another or the same."""
    return dict.fromkeys(NETWORK, (network,)) | dict.fromkeys(CONTROLNET, (control_net,))


def ideal_speedup(one: Program, two: Program, all_busy: bool = False) -> float:
    """Returns the speed-up of an evaluation with free communication, from program `one` on one
    worker to program `two` with the ControlNet on a second worker. `all_busy`: uses busy stage
    times even after the ControlNet's end.
    """
    whole = sum(seconds(one, name, False) for name in _tree(one).leaves())
    if all_busy:
        return whole / _tree(two).fold(lambda name: seconds(two, name, True))
    return whole / longest_path(two)


def longest_path(program: Program) -> float:
    """Returns the seconds of the critical path through an evaluation with free communication. The
    ControlNet never waits; operations that start after it ends are not slowed by it.
    """
    control = [op.id for op in _variant(program).operations if op.stage in CONTROLNET]
    control_seconds = sum(seconds(program, name, True) for name in control)
    graph = dependencies(_variant(program))
    ends: dict[str, float] = {}
    for name in networkx.topological_sort(graph):
        start = max((ends[before] for before in graph.pred[name]), default=0.0)
        ends[name] = start + seconds(program, name, busy=start < control_seconds)
    return max(ends.values())


def seconds(program: Program, name: str, busy: bool) -> float:
    """Returns the measured seconds of an operation, alone or next to an equally busy worker."""
    device = program.target.device(program.placement[name])
    return device.measured[program.keys[name], 1, busy]


def by_stage(programs: Sequence[Program]) -> dict[str, dict[str, list[float]]]:
    """Returns the measured seconds of an evaluation's operations, by stage, by `alone` and `busy`,
    and by program.
    """
    return {
        stage: {
            how: [
                sum(
                    seconds(program, op.id, how == "busy")
                    for op in _variant(program).operations
                    if op.stage == stage
                )
                for program in programs
            ]
            for how in ("alone", "busy")
        }
        for stage in (*NETWORK, *CONTROLNET)
    }


def _variant(program: Program) -> Variant:
    return program.variants[_number(program)]


def _tree(program: Program) -> Tree:
    tree: Tree = program.trees[_number(program)]
    return tree


def _number(program: Program) -> int:
    number = commonest_variant(program)
    assert number is not None  # something is sampled
    return number
