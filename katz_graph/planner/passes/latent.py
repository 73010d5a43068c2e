"""Fits an empty latent to the model that samples it. Must not import torch at import time."""

from __future__ import annotations

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import ModelRecipe
from katz_graph.models.family import architecture


def fit_empty(latent: LatentSamples, model: ModelRecipe) -> LatentSamples:
    """Returns the latent. An empty one (all zeros) gets the channel count of the model. Raises
    InputError for a non-empty latent with another channel count, and for one that is not [B, C, h,
    w].
    """
    samples, channels = latent["samples"], architecture(model.network).latent_channels
    if (dimensions := len(samples.shape)) != 4:
        raise InputError(
            f"the latent has {dimensions} dimensions, expected 4: those of pictures [B, C, h, w]"
        )
    batch, given, height, width = samples.shape
    if given == channels:
        return latent
    if samples.any():
        raise InputError(
            f"the latent has {given} channels, the model in {model.network.folder} takes "
            f"{channels}: encode the picture with the model's own VAE, or take an empty latent"
        )
    return {**latent, "samples": samples.new_zeros(batch, channels, height, width)}
