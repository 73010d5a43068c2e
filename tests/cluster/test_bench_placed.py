"""A bench of several workers at the size of a toy: what it measures and reports; bounds on times are for a quiet machine."""

from __future__ import annotations

import json

import pytest

from katz_graph.bench import controlnet
from katz_graph.bench.placed import Scale

TOY = Scale(channels=(16, 24, 32), side=8, steps=3, runs=1)


@pytest.mark.slow
def test_controlnet_on_a_second_worker_gives_the_same_picture_and_states_its_ideal() -> None:
    result = controlnet.run(TOY)
    metrics = json.loads(result.line())["metrics"]
    assert metrics["difference"] == 0
    assert set(metrics["stages"]) == {"controlnet", "unet_encoder", "unet_mid", "unet_decoder"}
    assert all(0 < times["alone"] < 5 and 0 < times["busy"] < 5 for times in metrics["stages"].values())
    alone = sum(times["alone"] for times in metrics["stages"].values())
    busy = {stage: times["busy"] for stage, times in metrics["stages"].items()}
    longest = max(busy["unet_encoder"] + busy["unet_mid"], busy["controlnet"]) + metrics["stages"]["unet_decoder"]["alone"]
    assert metrics["ideal_speedup"] == pytest.approx(alone / longest)
    assert metrics["prediction_error"] == pytest.approx(abs(metrics["seconds"] / metrics["predicted_seconds"] - 1))
    assert 0 < metrics["share_of_ideal_of_a_bare_loop"] < 4
    assert set(result.bounds) == {"prediction_error", "share_of_ideal", "difference"}
    assert result.ok == (metrics["prediction_error"] <= 0.10 and metrics["share_of_ideal"] >= 0.93)
