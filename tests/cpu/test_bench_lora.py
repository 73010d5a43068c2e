"""Small LoRA benches measure the named quantities; their figures do not matter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from command import use_threads

from katz_graph.bench import loading, longtail, lora, switching
from katz_graph.executor.measure.store import FILE
from katz_graph.testing.model_files import mini_models
from katz_graph.testing.placement import Scale

SMALL_SCALE = Scale(channels=(32, 32, 64), side=8, steps=4, runs=2, layers=1)


def test_patching_is_measured_against_a_copy_and_against_peft() -> None:
    result = lora.run(SMALL_SCALE)
    assert set(result.bounds) <= set(result.metrics)
    assert min(result.metrics.values()) > 0
    assert len(result.table) == len(lora.RANKS) + len(lora.FORMATS) - 1


def test_two_requests_that_switch_give_the_pictures_that_they_give_alone() -> None:
    result = switching.run(SMALL_SCALE)
    assert result.metrics["switches"] >= 2
    assert result.metrics["difference"] <= 1e-5
    assert 0 < result.metrics["switching_share"] < 5


def test_a_slow_store_is_waited_for_no_longer_than_it_takes(
    tmp_path: Path, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    use_threads(monkeypatch, loading, costs)
    mini = mini_models()
    setting = loading.Setting("mini", mini.pipeline, mini.loras[:1], 16, 1)
    pairs = loading._pairs(tmp_path, setting, Scale(side=16, steps=6, runs=2), 8)
    for pair in pairs:
        assert pair.arrived == 3  # K: the run waited
        assert pair.read > 0 and pair.patch > 0 and pair.restore > 0
        assert pair.with_them > pair.without


def test_a_server_reads_as_many_loras_as_a_replay(
    tmp_path: Path, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six requests are too few to measure memory."""
    monkeypatch.setattr(longtail, "ROUND", 1)
    (tmp_path / FILE).symlink_to(costs / FILE)  # downloads stay separate
    scale = longtail.Scale(requests=6, warm_up=6, loras=40)
    metrics = longtail.run(scale, cache=tmp_path).metrics
    assert metrics["uses_told"] == 1
    assert metrics["different"] > 3
    assert metrics["misses_off"] <= 1 / metrics["uses"]
    assert metrics["read_of_budget"] <= 1 and metrics["files_of_budget"] <= 1


def test_the_interval_of_a_median_holds_it() -> None:
    ratios = [1.0, 1.01, 1.02, 1.03, 5.0]
    assert 1.02 <= loading._upper(ratios) <= 5.0
    assert loading._upper([1.0] * 9) == 1.0
