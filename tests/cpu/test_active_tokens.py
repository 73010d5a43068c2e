"""Layers that compute some tokens and read the others from a template give the full computation's
result if the input is the template's.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import random_step, random_text, unet
from torch import Tensor

from katz_graph.ir.values import CachedActivations
from katz_graph.models.active import active_positions
from katz_graph.models.families.unet.attention import cross_attention_keys_values
from katz_graph.models.families.unet.embedding import added_embedding
from katz_graph.models.stage_registry import stage

BOUND = 1e-5  # of the range
LEVELS = 4


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


def evaluated(model: Any, step: Any, text: Any, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Runs a UNet's stages; returns the prediction and what its layers computed, if they collect
    it.
    """
    given = {
        "text": text,
        "cached": cross_attention_keys_values(model, text.hidden),
        "added": added_embedding(model, text),
        "first_block": 0,
        "last_block": -1,
        "patches": (),
        "parametrisation": "raw",
        "step": step,
        **options,
    }
    outputs: dict[str, Tensor] = {}
    for name in ("unet_encoder", "unet_mid", "unet_decoder"):
        given["features"], *more = stage(name).computed(model, given)
        if options.get("collects"):
            outputs |= more.pop()
    return more[0], outputs


def masks(batch: int, height: int, width: int) -> Tensor:
    """Returns soft masks [B, 1, h, w], another part of the picture for each row."""
    mask = torch.zeros(batch, 1, height, width)
    for row in range(batch):
        mask[row, :, row : height // 2 + row, 1 : width // 2] = 0.1
    return mask


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / (other.max() - other.min()))


@pytest.mark.parametrize("family, size", [("sd1", (9, 7)), ("sd2", (8, 8)), ("sdxl", (16, 13))])
def test_template_as_input_gives_the_full_computation(family: str, size: tuple[int, int]) -> None:
    model = unet(family, torch.float32)
    step, text = random_step(2, *size, torch.float32), random_text(model, 2, dtype=torch.float32)
    full, outputs = evaluated(model, step, text, collects=True)
    assert torch.equal(full, evaluated(model, step, text)[0])
    positions = active_positions(masks(2, *size), 1, LEVELS, bucket=4)
    cached = CachedActivations(positions, outputs)
    found, _ = evaluated(model, step, text, activations=cached)
    assert far(found, full) <= BOUND
    wrong = {name: one + 1 for name, one in outputs.items()}
    off, _ = evaluated(model, step, text, activations=CachedActivations(positions, wrong))
    assert far(off, full) > 1000 * BOUND  # tokens outside the mask come from the template
