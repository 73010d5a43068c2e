"""ControlNets read references of any size: features at latent resolution, not pixels, are padded to
a multiple of the patch size.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from katz_graph.models.stage_registry import stage
from katz_graph.testing.random_models import Kind, draw_controlnet

CELLS = 7, 9  # 4 x 5 patches of 2 x 2
ALONE: dict[str, Any] = {  # SD3.5's, with the model's own tokens
    "joint_attention_dim": None,
    "pos_embed_max_size": None,
    "pos_embed_type": None,
    "use_pos_embed": False,
    "force_zeros_for_pooled_projection": False,
    "qk_norm": None,
    "attention_head_dim": 64,
    "num_attention_heads": 1,
    "caption_projection_dim": 64,
}
XLABS: dict[str, Any] = {
    "conditioning_embedding_channels": 16,
    "num_single_layers": 0,
    "patch_size": 2,
}
MADE: dict[str, tuple[Kind, dict[str, Any], tuple[int, ...]]] = {
    "flux": ("flux", {}, (16, *CELLS)),
    "flux of pixels": ("flux", XLABS, (3, CELLS[0] * 8, CELLS[1] * 8)),
    "sd3": ("sd3", {}, (16, *CELLS)),
    "sd35": ("sd35", {}, (16, *CELLS)),
    "sd35 on tokens": ("sd35", ALONE, (16, *CELLS)),
    "z_image": ("z_image", {}, (16, *CELLS)),
    "hunyuan_dit": ("hunyuan_dit", {}, (4, *CELLS)),
}


def drawn(name: str) -> tuple[Any, Tensor]:
    kind, changed, shape = MADE[name]
    module = draw_controlnet(kind, 2, 2, **changed)
    return module, torch.randn(2, *shape, generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def hint(module: Any, reference: Tensor) -> Tensor:
    (tokens,) = stage("transformer_hint").computed(module, {"reference": reference})
    return tokens


@pytest.mark.defect(17)
@pytest.mark.parametrize("name", MADE)
def test_a_reference_of_an_odd_size_becomes_whole_patches(name: str) -> None:
    module, reference = drawn(name)
    assert hint(module, reference).shape[:2] == (2, 4 * 5)


@pytest.mark.defect(17)
@torch.no_grad()
def test_pixel_features_are_padded_by_reflection() -> None:
    """Patches are cut and embedded as in diffusers' forward."""
    module, pixels = drawn("flux of pixels")
    features = module.input_hint_block(pixels)
    assert features.shape[-2:] == CELLS
    whole = torch.cat([features, features[:, :, :1]], dim=2)
    whole = torch.cat([whole, whole[..., :1]], dim=3)
    patches = whole.reshape(2, 16, 4, 2, 5, 2).permute(0, 2, 4, 1, 3, 5).reshape(2, 20, 64)
    assert torch.equal(hint(module, pixels), module.controlnet_x_embedder(patches))
