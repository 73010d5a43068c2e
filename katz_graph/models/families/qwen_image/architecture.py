"""Derives the architecture of a Qwen-Image transformer from its configuration and completes its
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
    ConditioningEntry,
    ModelRecipe,
    ReferencePlacing,
)
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.families.shared.conditioning import (
    check_channels,
    check_unsupported_conditioning,
)
from katz_graph.models.family import Architecture
from katz_graph.models.vae.kinds import QWEN_IMAGE

TRANSFORMER = "QwenImageTransformer2DModel"
CONTROLNET = "QwenImageControlNetModel"
FUN_CONTROLNET = "QwenImageFunControlNetModel"
LATENT = QWEN_IMAGE.latent
STILL: ReferencePlacing = "index_timestep_zero"
BEHIND: ReferencePlacing = "negative_index"
THETA = 10_000  # of rotary positions
MU = 1.15  # of the shift of noise levels, at every size, as in ComfyUI


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a transformer or a ControlNet. Raises InputError for another
    class, and for a guidance input, which no published model has.
    """
    expect_class(part, TRANSFORMER, CONTROLNET, FUN_CONTROLNET)
    if config(part)["_class_name"] == FUN_CONTROLNET:  # reads the model's text tokens
        return Architecture(LATENT.channels, LATENT.channels, text_width=0, pooled_width=None)
    if config(part).get("guidance_embeds"):
        raise InputError(
            f"{part.folder}: config.json: guidance_embeds is true, expected false: models with a "
            "guidance input are not supported"
        )
    cells = config_value(part, "patch_size", int, 2) ** 2
    channels = config_value(part, "in_channels", int, LATENT.channels * cells)
    return Architecture(
        latent_channels=int(config(part).get("out_channels") or channels),
        input_channels=channels // cells,
        text_width=config_value(part, "joint_attention_dim", int, 3584),
        pooled_width=None,
    )


def latent_of(network: Component) -> LatentSpace:
    """Returns the space of a network's latents: with frames if it was trained on layers."""
    return replace(LATENT, frames=True) if config(network).get("use_layer3d_rope") else LATENT


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Sets the method of reference latents that the model was trained with, unless the conditioning
    sets another than the default. Raises InputError for latents with a wrong channel count, for a
    method that the model has not, and for guidance.
    """
    references, values = entry.references, config(model.network)
    check_unsupported_conditioning(replace(entry, references=None), model)
    if references is None:
        return entry
    for reference in references.latents:
        check_channels("a reference", reference, model)
    if references.placing == "uxo":
        raise InputError(
            f"{model.network.folder}: the model has no reference method uxo/uno: choose index or "
            "index_timestep_zero"
        )
    if references.placing != "offset":
        return entry
    own: ReferencePlacing = "index"
    if values.get("zero_cond_t"):
        own = STILL
    elif values.get("use_layer3d_rope"):
        own = BEHIND
    return replace(entry, references=replace(references, placing=own))
