"""The benches of several workers, at toy size, measure and report. Their time bounds hold only on a
quiet machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import use_threads

from katz_graph.bench import controlnet, pipeline, streaming
from katz_graph.bench.wire import BASE, CONTROL
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink
from katz_graph.planner.queries import commonest_variant
from katz_graph.testing.placement import Scale
from katz_graph.testing.worker_threads import WorkerThreads

TOY = Scale(channels=(16, 24, 32), side=8, steps=3, runs=1)


@pytest.mark.slow
def test_controlnet_on_a_second_worker_gives_the_same_picture_and_states_its_ideal(
    monkeypatch: pytest.MonkeyPatch, costs: Path
) -> None:
    use_threads(monkeypatch, controlnet, costs)
    result = controlnet.run(TOY)
    metrics = json.loads(result.line())["metrics"]
    assert metrics["difference"] == 0
    assert set(metrics["stages"]) == {"controlnet", "unet_encoder", "unet_mid", "unet_decoder"}
    assert all(
        0 < times["alone"] < 5 and 0 < times["busy"] < 5 for times in metrics["stages"].values()
    )
    alone = sum(times["alone"] for times in metrics["stages"].values())
    busy = {stage: times["busy"] for stage, times in metrics["stages"].items()}
    longest = (
        max(busy["unet_encoder"] + busy["unet_mid"], busy["controlnet"])
        + metrics["stages"]["unet_decoder"]["alone"]
    )
    assert metrics["ideal_speedup"] == pytest.approx(alone / longest)
    assert metrics["prediction_error"] == pytest.approx(
        abs(metrics["seconds"] / metrics["predicted_seconds"] - 1)
    )
    assert metrics["share_of_ideal_of_a_bare_loop"] > 0
    assert set(result.bounds) == {"prediction_error", "share_of_ideal", "difference"}
    assert result.ok == (metrics["prediction_error"] <= 0.10 and metrics["share_of_ideal"] >= 0.93)


@pytest.mark.slow
def test_the_pipeline_bench_compares_the_same_on_the_fastest_link(
    tmp_path: Path, costs: Path
) -> None:
    """The link is so fast that a planned delay gains nothing."""
    region = pipeline.Models.make(tmp_path, TOY).request(TOY, guidance=1.0)
    workers = [WorkerConfig(name) for name in (BASE, CONTROL)]
    rates: list[float] = []
    with DeviceEngine(
        workers,
        cache=costs,
        link=NetworkLink(22.7e9),
        launchers={one.name: WorkerThreads() for one in workers},
    ) as engine:
        metrics = pipeline.compare(engine, region, rates.append, runs=1).metrics
        program, _ = pipeline.pipelined(engine, region)
    assert program.stale and len(program.instructions) == 2
    # of the skips at 8x8, 4x4 and 2x2 cells; the middle block's residual has the last one's shape
    widths = (16, 16, 16, 16, 24, 24, 24, 32, 32, 32)
    cells = (64, 64, 64, 16, 16, 16, 4, 4, 4, 4)
    expected = 4 * sum(width * size for width, size in zip(widths, cells, strict=True))
    assert metrics["residual_bytes"] == pytest.approx(expected)
    assert rates[0] / rates[1] == pytest.approx(pipeline.BOUND / pipeline.HIDDEN) and rates[1] > 0


@pytest.mark.slow
def test_the_streaming_bench_gives_the_same_picture_and_compares_both_placements(
    tmp_path: Path, costs: Path
) -> None:
    """Uses given link speeds."""
    scale = Scale(side=8, steps=3, runs=1)
    models = streaming.Shape(heads=1, blocks=4, control_blocks=2).make(tmp_path, scale.side)
    region = models.request(scale, guidance=1.0)
    rates: list[float] = []

    def engine(*names: str) -> DeviceEngine:
        return DeviceEngine(
            [WorkerConfig(name) for name in names],
            cache=costs,
            link=NetworkLink(1e9, 1e-4),
            launchers={name: WorkerThreads() for name in names},
        )

    with engine("cpu:0", "cpu:1") as pair:
        metrics = streaming.compare(pair, region, region, runs=1).metrics
        local, placed = (
            streaming.plan(pair, region, streaming.pins("cpu:0", other))
            for other in ("cpu:0", "cpu:1")
        )
    assert metrics["difference"] == 0 and metrics["ideal_speedup"] > 0
    assert set(metrics["stages"]) == {*streaming.NETWORK, *streaming.CONTROLNET}
    # The upper bound: six blocks and their ends in sequence, divided by the transformer's own time,
    # each at its faster measurement, because a toy's busy time may be shorter.
    alone = sum(
        seconds for times in streaming.by_stage([local]).values() for seconds in times["alone"]
    )
    number = commonest_variant(placed)
    assert number is not None
    network = sum(
        min(streaming.seconds(placed, op.id, busy) for busy in (False, True))
        for op in placed.variants[number].operations
        if op.stage in streaming.NETWORK
    )
    assert 0 < streaming.ideal_speedup(local, placed) <= (1 + 1e-9) * alone / network
    assert metrics["share_of_ideal"] == pytest.approx(metrics["speedup"] / metrics["ideal_speedup"])
    with engine(BASE, CONTROL) as apart:
        slow = streaming.behind_slow_link(apart, region, rates.append, runs=1).metrics
    assert slow["residual_bytes"] == 2 * 16 * 64 * 4  # two of 16 tokens, 64 wide, in float32
    (rate,) = rates
    assert 0 < rate < 1e9
