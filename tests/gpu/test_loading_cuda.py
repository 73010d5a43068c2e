"""Weights arrive unchanged on a GPU, in new or in an evicted model's memory. Skipped without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from katz_graph.host import transfer
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.random_models import make_pipeline

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights_arrive_as_they_are(
    tmp_path: Path, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transfer buffers are so small that each is filled many times."""
    monkeypatch.setattr(transfer, "RING_BYTES", 10_000)
    parts = []
    for seed in (1, 2):
        make_pipeline(tmp_path / str(seed), "sd1", seed=seed)
        parts.append(pipeline_recipes(tmp_path / str(seed))[0].network)
    here = ModelStore()
    there = ModelStore(model_bytes=here.network_of(parts[0], "cuda:0", dtype).size())
    modules = []
    for part in (*parts, *parts):
        module = there.network(part, "cuda:0", dtype)
        assert _same(module, here.network(part, "cpu", dtype))
        modules.append(module)
    assert all(module is modules[0] for module in modules)


def _same(module: Any, other: Any) -> bool:
    weights = dict(other.named_parameters())
    return all(torch.equal(value.cpu(), weights[name]) for name, value in module.named_parameters())
