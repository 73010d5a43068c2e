"""Derives the architecture of a FLUX.1 transformer from its configuration and completes its
conditioning. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import (
    Component,
    Concatenated,
    ConditioningEntry,
    ModelRecipe,
    Picture,
)
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.families.shared.conditioning import check_channels
from katz_graph.models.family import Architecture, Configuration, architecture

TRANSFORMER, CONTROLNET = "FluxTransformer2DModel", "FluxControlNetModel"
LATENT = LatentSpace(channels=16, factor=8, scale=0.3611, shift=0.1159)
PATCH = 4  # latent cells per patch
GUIDANCE = 3.5  # default for models with guidance embedding


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a transformer or ControlNet. Raises InputError for others."""
    expect_class(part, TRANSFORMER, CONTROLNET)
    channels = config_value(part, "in_channels", int, LATENT.channels * PATCH)
    return Architecture(
        latent_channels=int(config(part).get("out_channels") or channels) // PATCH,
        input_channels=channels // PATCH,
        text_width=config_value(part, "joint_attention_dim", int),
        pooled_width=config_value(part, "pooled_projection_dim", int),
    )


def is_guided(part: Component) -> bool:
    """Returns whether a transformer is guidance-distilled, with guidance as an input."""
    return bool(config(part).get("guidance_embeds", False))


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Adds the default guidance and, for fill and control models, the mask channels of the latent,
    if not set. Raises InputError for latents with a wrong channel count.
    """
    guidance = entry.guidance if is_guided(model.network) else "off"
    if entry.references is not None:
        if entry.references.placing not in ("offset", "index", "uxo"):
            raise InputError(
                f"{model.network.folder}: the model has no reference method "
                f"{entry.references.placing}: choose offset, index or uxo/uno"
            )
        for reference in entry.references.latents:
            check_channels("a reference", reference, model)
    entry = replace(entry, guidance=GUIDANCE if guidance is None else guidance)
    if not architecture(model.network).extra_channels:
        return entry
    mask = latent.get("noise_mask")
    if entry.concatenated is None:
        seen = None if mask is None else Picture.of(mask)
        return replace(entry, concatenated=Concatenated(mask=seen))
    if entry.concatenated.latent is not None:
        check_channels("the picture to inpaint", entry.concatenated.latent, model)
    return entry


def trained_noise(part: Component) -> Configuration:
    """Returns the scheduler configuration. The shift depends on the picture's size, except in
    models distilled to few steps, which take no guidance.
    """
    dynamic = is_guided(part)
    return {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "num_train_timesteps": 1000,
        "shift": 3.0 if dynamic else 1.0,
        "use_dynamic_shifting": dynamic,
        "base_shift": 0.5,
        "max_shift": 1.15,
    }
