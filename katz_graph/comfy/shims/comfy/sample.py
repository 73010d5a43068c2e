"""Provides `comfy.sample` to packs: the noise of a seed. Sampling itself is the work of sampler
nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np  # noqa: F401  packs take it from here
import torch
from torch import Tensor

from katz_graph.comfy.missing import missing_names

__getattr__ = missing_names(
    __name__, "sample sample_custom prepare_sampling prepare_mask cleanup_additional_models"
)


def prepare_noise(
    latent_image: Tensor, seed: int, noise_inds: Sequence[int] | None = None
) -> Tensor:
    """Draws randn of the latent's shape from a CPU generator; with indices, that noise of a longer
    batch for each sample.
    """
    from katz_graph.sampling.noise import initial_noise

    return initial_noise(latent_image.shape, seed, noise_inds).to(latent_image.dtype)


def fix_empty_latent_channels(model: Any, latent_image: Tensor, *_: Any, **__: Any) -> Tensor:
    """Gives an all-zero latent as many channels as the model has; others stay as they are."""
    channels = model.get_model_object("latent_format").latent_channels
    if latent_image.shape[1] == channels or torch.count_nonzero(latent_image):
        return latent_image
    return latent_image.new_zeros(len(latent_image), channels, *latent_image.shape[2:])
