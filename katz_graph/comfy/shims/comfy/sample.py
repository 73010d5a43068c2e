"""Provides `comfy.sample` to packs: noise from a seed. Packs sample through sampler nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np  # noqa: F401  packs take it from here
import torch
from torch import Tensor

from katz_graph.comfy.missing import missing_names
from katz_graph.models.vae.kinds import empty_in

__getattr__ = missing_names(
    __name__, "sample sample_custom prepare_sampling prepare_mask cleanup_additional_models"
)


def prepare_noise(
    latent_image: Tensor, seed: int, noise_inds: Sequence[int] | None = None
) -> Tensor:
    """Draws normal noise of the latent's shape from a CPU generator. `noise_inds`: each sample's
    position in a longer batch.
    """
    from katz_graph.sampling.noise import initial_noise

    return initial_noise(latent_image.shape, seed, noise_inds).to(latent_image.dtype)


def fix_empty_latent_channels(model: Any, latent_image: Tensor, *_: Any, **__: Any) -> Tensor:
    """Gives an all-zero latent the model's number of channels, and its cells for the same picture;
    returns others unchanged.
    """
    space = model.get_model_object("latent_format").space
    if latent_image.shape[1] == space.channels or torch.count_nonzero(latent_image):
        return latent_image
    return empty_in(space, latent_image)
