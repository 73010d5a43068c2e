"""The measures of `katz bench stale`: similarity of pictures and residuals. Observers change
nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from katz_graph.bench.likeness import psnr, ssim
from katz_graph.bench.stale import cosine_similarity, listened
from katz_graph.ir.values import Residuals
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region


def noise(seed: int) -> torch.Tensor:
    return torch.rand(32, 32, 3, generator=torch.Generator().manual_seed(seed))


def test_signal_to_noise() -> None:
    black = torch.zeros(16, 16, 3)
    assert psnr(black, black + 0.1) == pytest.approx(20.0, abs=1e-4)  # mean square 0.01
    assert psnr(black, black) == math.inf


def test_structural_similarity() -> None:
    assert ssim(noise(1), noise(1)) == pytest.approx(1.0)
    assert abs(ssim(noise(1), noise(2))) < 0.2  # independent
    even = torch.full((32, 32, 3), 0.5)
    # no structure: luminance only
    assert ssim(even, even / 2) == pytest.approx(
        (2 * 0.5 * 0.25 + 1e-4) / (0.5**2 + 0.25**2 + 1e-4)
    )
    inverted = ssim(noise(1), 1 - noise(1))
    assert -1.0 <= inverted < -0.9  # inverted structure


def test_similarity_of_residuals_is_taken_across_channels() -> None:
    def residuals(first: list[float], middle: list[float]) -> Residuals:
        return Residuals(
            (torch.tensor(first).reshape(1, 2, 1, 1),), torch.tensor(middle).reshape(1, 2, 1, 1)
        )

    one = residuals([1.0, 0.0], [0.0, 3.0])
    # lengths do not count
    assert cosine_similarity(one, residuals([2.0, 0.0], [0.0, 1.0])) == pytest.approx(1.0)
    assert cosine_similarity(one, residuals([1.0, 1.0], [1.0, 0.0])) == pytest.approx(
        (math.sqrt(0.5) + 0.0) / 2
    )


def test_listening_changes_nothing_and_hears_every_evaluation_but_the_first(
    sd1: Models, costs: Path
) -> None:
    control = ControlCase(sd1.controls[0], 0.8, 0.0, 1.0)
    region = sampler_region(Case("test", sd1.pipeline, "euler", 4, controls=(control,)))
    observed: dict[int, list[float]] = defaultdict(list)
    with local_engine(batching=True, cache=costs) as engine:
        plain = sample(engine, region)
        with_ears, observers = listened(region, observed)
        listening = sample(engine, with_ears, bare_context(engine, **observers))
    assert torch.equal(plain, listening)
    # positive and negative
    assert {evaluation: len(values) for evaluation, values in observed.items()} == {
        1: 2,
        2: 2,
        3: 2,
    }
    assert all(0.5 < value < 1.0 for values in observed.values() for value in values)
