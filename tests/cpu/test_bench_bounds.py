"""The arithmetic of the multi-worker benches, on made-up programs and times. tests/cluster runs a
toy bench.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from planner_devices import MS, SECONDS, devices, laid, region, several

from katz_graph.bench import controlnet, latent, parity, sharing, stock, streaming
from katz_graph.core.events import Span
from katz_graph.executor.cluster.requests import Outcome
from katz_graph.executor.measure.stages import StageTime
from katz_graph.executor.messages import Timing
from katz_graph.executor.planning import plan_region
from katz_graph.ir.device import Target
from katz_graph.ir.program import Program
from katz_graph.testing.placement import Scale, Stages, Track
from katz_graph.testing.random_models import playing

BUSY = 1.5  # factor on a stage's time next to a busy neighbour


def stages(**seconds: float) -> Stages:
    """Returns times by which a call of twice the branches takes 1.6 times as long."""
    known = SECONDS | seconds
    times = [
        (stage, rows, value * (1.6 if rows == 2 else 1))
        for stage, value in known.items()
        for rows in (1, 2)
    ]
    return Stages(
        [StageTime(stage, "cpu:0", rows, value, value * BUSY, 0.0) for stage, rows, value in times]
    )


def on(controls: str = "cpu:0", branches: int = 1) -> Program:
    """Places ControlNets on `controls`; if empty, one branch on each device."""
    program = several(region(controls=1 if controls else 0, branches=branches), after="search")
    operations = [op for variant in program.variants for op in variant.operations]
    if controls:
        return laid(program, {op.id: controls for op in operations if op.stage == "controlnet"})
    return laid(program, {op.id: "cpu:1" for op in operations if op.id.startswith("negative")})


def test_the_ideal_with_a_controlnet_elsewhere_is_the_longer_of_both_sides_and_the_decoder() -> (
    None
):
    one, two = on("cpu:0"), on("cpu:1")
    alone = 49 * MS  # encoder 12, mid 3, decoder 19, ControlNet 15
    assert controlnet.ideal_speedup(one, two, stages()) == pytest.approx(
        alone / ((15 * BUSY + 19) * MS)
    )
    slow = stages(controlnet=40 * MS)
    assert controlnet.ideal_speedup(one, two, slow) == pytest.approx(
        74 * MS / ((40 * BUSY + 19) * MS)
    )


def test_the_ideal_of_two_branches_is_one_worker_s_time_over_the_busier_of_two() -> None:
    one, two = (
        several(region(controls=0, branches=2), speeds=(1.0,), after="search"),
        on("", branches=2),
    )
    calls = (
        2 * 34 * MS if all(len(call.operations) == 1 for call in one.calls[0]) else 1.6 * 34 * MS
    )
    assert latent.ideal_speedup(one, two, stages()) == pytest.approx(calls / (34 * BUSY * MS))
    assert latent.bare_ideal(stages()) == pytest.approx(2 / BUSY)


def track(program: Program, seconds: float, samples: torch.Tensor) -> Track:
    timing = Timing(prepare=0.5, denoise=seconds)
    outcome = Outcome(
        samples, samples, dict.fromkeys((device.name for device in program.target.devices), timing)
    )
    return Track("made up", None, lambda: program, [program] * 3, [outcome] * 3)  # type: ignore[arg-type]


def test_shares_and_differences_of_two_workers() -> None:
    expected = torch.linspace(0, 1, 5)
    two = replace(on("", branches=2), prediction=several(region(controls=0, branches=2)).prediction)
    one = several(region(controls=0, branches=2), speeds=(1.0,))
    one = replace(one, target=replace(one.target, devices=devices(1.0, 1.0)))
    ideal = latent.ideal_speedup(one, two, stages())
    found = latent.Measured(
        track(one, 3.0, expected),
        track(two, 2.0, expected + 0.25),
        [stages()] * 3,
        [1.1] * 3,
        expected,
    ).metrics
    assert found["speedup"] == pytest.approx(1.5)
    assert found["share_of_ideal"] == pytest.approx(1.5 / ideal)
    assert found["share_of_ideal_of_a_bare_loop"] == pytest.approx(1.1 / (2 / BUSY))
    assert found["devices"] == 2
    assert found["difference"] == pytest.approx(0.25)
    assert found["seconds"] == pytest.approx(2.5)  # including hoisted work


def outcome(*served: tuple[float, float]) -> Outcome:
    spans = [
        Span(sharing.SHARED, "run", start, seconds, number)
        for number, (start, seconds) in enumerate(served)
    ]
    timing = Timing(spans=[Span(sharing.SHARED, "load", 0.0, 9.0), *spans])
    nothing: Any = None
    return Outcome(nothing, nothing, {sharing.SHARED: timing})


def test_service_counts_until_one_request_has_had_all_of_its_own() -> None:
    first, second = outcome((1.0, 1.0), (3.0, 1.0)), outcome((2.0, 1.0), (4.0, 1.0), (5.0, 2.0))
    assert sharing.service([first, second]) == [2.0, 1.0]
    assert sharing.service([second, first]) == [1.0, 2.0]


def test_the_ideal_of_a_ladder_is_its_longest_path_with_a_separate_end(tmp_path: Path) -> None:
    scale = Scale(side=8, steps=3)
    models = streaming.Shape(heads=1, blocks=4, control_blocks=2).make(tmp_path, scale.side)
    wanted = models.request(scale, guidance=1.0)
    counted = plan_region(wanted, Target(devices(1.0)), after="cost")
    lasts = {
        op.id: 1 + op.inputs["last_block"] - op.inputs["first_block"]
        for op in counted.variants[0].operations
        if op.stage == "transformer_blocks"
    }
    alone = {
        counted.keys[op.id]: MS * (4 * lasts.get(op.id, 1) if "block" in op.stage else 1)
        for op in counted.variants[0].operations
        if counted.keys.get(op.id)
    }
    measured = {
        (key, 1, busy): seconds * (BUSY if busy else 1)
        for key, seconds in alone.items()
        for busy in (False, True)
    }
    pair = tuple(replace(device, measured=measured) for device in devices(1.0, 1.0))
    one, two = (
        plan_region(wanted, Target(pair, {}, streaming.pins("cpu:0", control)))
        for control in ("cpu:0", "cpu:1")
    )
    # busy: embedding and block, as the ControlNet's; two more blocks; alone: last and head
    longest = BUSY * (1 + 4 + 8) + 4 + 1
    assert streaming.longest_path(two) == pytest.approx(longest * MS)
    whole = 1 + 4 * 4 + 1 + 1 + 2 * 4
    assert streaming.ideal_speedup(one, two) == pytest.approx(whole / longest)
    assert streaming.ideal_speedup(one, two, all_busy=True) == pytest.approx(whole / (BUSY * 18))


def test_transformers_are_compared_with_the_stock_pipelines_of_equal_latents() -> None:
    found = stock.measure(stock.Size(heads=1, blocks=2, side=8, steps=4, runs=1))
    timed = playing("timed")
    assert {f"{kind}{end}_ratio" for kind in timed for end in ("", "_controlnet")} <= set(found)
    assert all(found[name] <= 1e-5 for name in found if name.endswith("difference"))
    assert len(stock.rows(found)) == 4


def test_transformers_pictures_are_rows_of_parity(tmp_path: Path) -> None:
    rows = list(parity.transformer_rows(tmp_path, ("sd35",)))
    assert len({tuple(row[:2]) for row in rows}) == 4  # with or without ControlNet, batching
    assert all(row[2] <= parity.BOUND for row in rows)


def test_pictures_of_models_that_are_shown_one_are_rows_of_parity(tmp_path: Path) -> None:
    rows = list(parity.editing_rows(tmp_path, ("flux",)))
    assert len({row[0] for row in rows}) == 3
    assert all(row[2] <= parity.BOUND for row in rows)
