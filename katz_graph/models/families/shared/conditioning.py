"""Completes the conditioning of a sampler for models of several families. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Concatenated, ConditioningEntry, ModelRecipe, Picture
from katz_graph.models.family import architecture


def with_channels(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any]
) -> ConditioningEntry:
    """Adds the extra input channels of an inpainting or editing model if the conditioning sets
    none: the latent and its noise mask, or zeros if the latent has no mask.
    """
    if not architecture(model.network).extra_channels or entry.concatenated is not None:
        return entry
    mask = latent.get("noise_mask")
    if mask is None:
        return replace(entry, concatenated=Concatenated())
    seen = Concatenated(Picture.of(latent["samples"]), Picture.of(mask))
    return replace(entry, concatenated=seen)


def check_channels(what: str, latent: Picture, model: ModelRecipe) -> None:
    """Raises InputError if a latent's channel count differs from the model's. `what` names the
    latent in the message.
    """
    given, wanted = latent.pixels.shape[1], model.latent.channels
    if given != wanted:
        raise InputError(
            f"{model.network.folder}: {what} has {given} channels, the model's latents have "
            f"{wanted}: encode it with the model's own VAE"
        )


def check_unsupported_conditioning(entry: ConditioningEntry, model: ModelRecipe) -> None:
    """Raises InputError for guidance or reference latents, for a model that reads neither."""
    if entry.references is not None:
        raise InputError(
            f"{model.network.folder}: the model reads no references: remove ReferenceLatent, or "
            "use an editing model"
        )
    if isinstance(entry.guidance, float):
        raise InputError(
            f"{model.network.folder}: the model has no guidance input, the conditioning sets "
            f"{entry.guidance:g}: remove FluxGuidance, and set cfg of the sampler"
        )
