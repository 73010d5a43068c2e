"""An empty latent of another space becomes the model's, for the same picture."""

from __future__ import annotations

import json

import pytest
import torch

from katz_graph.comfy.facades.model import LatentFormat
from katz_graph.comfy.shims.comfy.sample import fix_empty_latent_channels
from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Component, ModelRecipe
from katz_graph.models.vae.kinds import FLUX2, QWEN_IMAGE, QWEN_IMAGE_21
from katz_graph.planner.region import fit_latent


def model(space: LatentSpace) -> ModelRecipe:
    widths = dict.fromkeys(
        ("attention_head_dim", "caption_projection_dim", "joint_attention_dim"), 8
    )
    values = {"_class_name": "SD3Transformer2DModel", "num_attention_heads": 1, **widths}
    values |= {"pooled_projection_dim": 8, "in_channels": space.channels}
    network = Component("network", (), json.dumps(values))
    return ModelRecipe(network, network, space)


@pytest.mark.parametrize(
    ("space", "given", "wanted"),
    [
        (QWEN_IMAGE_21.latent, (2, 4, 32, 24), (2, 64, 16, 12)),
        (QWEN_IMAGE_21.latent, (1, 16, 33, 1), (1, 64, 16, 1)),
        (FLUX2.latent, (1, 4, 32, 24), (1, 128, 16, 12)),
        (FLUX2.latent, (1, 64, 32, 24), (1, 128, 32, 24)),
        (QWEN_IMAGE.latent, (1, 4, 32, 24), (1, 16, 32, 24)),
        (QWEN_IMAGE.latent, (1, 128, 16, 12), (1, 16, 32, 24)),
        (QWEN_IMAGE.latent, (1, 4, 1, 32, 24), (1, 16, 32, 24)),
    ],
)
def test_cells_are_those_of_the_model(
    space: LatentSpace, given: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    fitted = fit_latent({"samples": torch.zeros(given)}, model(space))["samples"]
    assert fitted.shape == wanted and not fitted.any()
    if len(given) == len(wanted):  # as packs ask for it
        format = LatentFormat(model(space))

        class Patcher:
            def get_model_object(self, name: str) -> LatentFormat:
                return format

        assert fix_empty_latent_channels(Patcher(), torch.zeros(given)).shape == wanted


def test_latents_that_are_not_empty_keep_their_size() -> None:
    latent = {"samples": torch.ones(1, 64, 4, 4)}
    assert fit_latent(latent, model(QWEN_IMAGE_21.latent)) == latent  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the latent has 64 channels, the model in network takes"):
        fit_latent(latent, model(FLUX2.latent))  # type: ignore[arg-type]
