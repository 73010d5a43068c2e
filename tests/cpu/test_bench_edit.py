"""A small `katz bench edit`. Seconds are replaced by floating-point operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from katz_graph.bench import edit_quality, edit_similar, edit_speed
from katz_graph.bench.command import run_bench
from katz_graph.bench.conditions import quiet
from katz_graph.bench.edit_speed import Network, Scale, make_usual
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError

CONVOLUTIONAL = Network(
    "convolutional",
    lambda folder: make_usual(folder, (16, 32, 64), (1, 1, 1), modules=1),
    4,
    (16,),
    1,
    3,
    {(16, 0.2): 1.1},
)


def test_speed_compares_the_gain_with_that_of_the_active_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edit_speed, "thread_seconds", edit_speed.flop)
    scale = Scale((CONVOLUTIONAL,), (0.2,), rounds=1)
    with quiet():
        result = edit_speed.run(scale)
        assert result.ok, result.metrics
        assert (
            result.metrics["fill_convolutional_16"]
            == result.metrics["without_convolutional_16"]
            == 1
        )
        assert result.table[0][3] == "128 + 36 + 9"

        def all_tokens(mask: torch.Tensor, *sizes: int, bucket: int = 64) -> Any:
            return positions(mask if bucket == 1 else torch.ones_like(mask), *sizes, bucket=bucket)

        positions = edit_speed.active_positions
        monkeypatch.setattr(edit_speed, "active_positions", all_tokens)
        slow = edit_speed.run(scale)
    assert not slow.ok and slow.metrics["gain_convolutional_16_at_0.2"] < 1.1
    with pytest.raises(InputError, match="--part memory: expected one of"):
        run_bench("edit", as_json=False, part="memory")


def test_cached_edits_are_near_full_ones_unless_they_compute_other_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mask = edit_quality.MASKS[0]

    def judged(**miniatures: Any) -> BenchResult:
        chosen = {"miniatures": miniatures} if miniatures else {}
        with quiet():
            return edit_quality.run(
                edit_quality.Scale(**chosen, edits=1, masks=(mask,), conditions=("plain",), steps=4)
            )

    result = judged()
    assert result.ok, result.metrics
    assert {name.partition("_")[0] for name in result.metrics} == {"noise", "flow"}
    positions = edit_quality.active_positions

    def of_the_rest(mask: torch.Tensor, *sizes: int) -> Any:
        return positions(1 - mask, *sizes[:2])

    monkeypatch.setattr(edit_quality, "active_positions", of_the_rest)
    wrong = judged(noise=edit_quality.Scale().miniatures["noise"])
    assert not wrong.ok and wrong.metrics["noise_plain_psnr_gain"] < 8
    assert wrong.metrics["noise_different_outside"] == 0


def test_similar_starts_save_evaluations_and_miss_attributes_if_they_are_too_late() -> None:
    scale = edit_similar.Scale(
        {"noise": edit_similar.Scale().miniatures["noise"]},
        captions=5,
        scenes=1,
        profiled=1,
        changed=1,
        steps=4,
        pairs=20,
        entries=500,
    )
    with quiet():
        result = edit_similar.run(scale)
    metrics = result.metrics
    assert metrics["noise_others_hit"] == 0
    assert metrics["look_up_seconds"] < edit_similar.SECONDS
    # too few pairs are measured for a table; every later request begins at half of its steps
    assert metrics["noise_profiled_saved"] == metrics["noise_profiled_old"] == 0
    assert metrics["noise_half_saved"] == pytest.approx(0.5 * 4 / 5)
    assert metrics["noise_half_old"] > edit_similar.OLD
    assert not result.ok and "noise: half" in result.svg
