"""Attention computed at every step tries torch's libraries in the device's order; attention
computed once does not. A CPU follows the order like a Hopper GPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn import attention as backends

from katz_graph.kernels import attention
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import local_engine, sample, sampler_region

TEXT = 77  # tokens


def first_library() -> Any:
    return backends._cur_sdpa_kernel_backends(with_priority=True)[0]


def test_only_per_step_calls_use_another_order(
    sd1: Models, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = sampler_region(Case("test", sd1.pipeline, "euler", 2))
    usual, computed = first_library(), F.scaled_dot_product_attention
    with local_engine(batching=True, cache=costs) as engine:
        expected = sample(engine, region)
        engine.models.unload()
        asked: list[Any] = []

        def noted(query: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
            asked.append((query.shape[-2], first_library()))
            return computed(query, *given, **options)

        monkeypatch.setattr(attention, "_prefers_cudnn", lambda device: True)
        monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
        assert torch.equal(sample(engine, region), expected)
    assert usual != attention.ORDER[0] and first_library() == usual
    of_pictures = {first for tokens, first in asked if tokens != TEXT}
    assert of_pictures == {attention.ORDER[0]}
    assert {first for tokens, first in asked if tokens == TEXT} <= {usual}
