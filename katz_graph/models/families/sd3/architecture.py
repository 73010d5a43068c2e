"""Derives the architecture of a Stable Diffusion 3 or 3.5 transformer from its configuration. Never
imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Component, ConditioningEntry, ModelRecipe
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.families.shared.conditioning import check_unsupported_conditioning
from katz_graph.models.family import Architecture, Configuration

TRANSFORMER, CONTROLNET = "SD3Transformer2DModel", "SD3ControlNetModel"
LATENT = LatentSpace(channels=16, factor=8, scale=1.5305, shift=0.0609)
SCHEDULER: Configuration = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
}


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a transformer or ControlNet. Raises InputError for another class,
    or if picture and text tokens differ in width.
    """
    expect_class(part, TRANSFORMER, CONTROLNET)
    heads, head_width = (
        config_value(part, name, int) for name in ("num_attention_heads", "attention_head_dim")
    )
    alone = reads_tokens(part)
    text = heads * head_width if alone else config_value(part, "caption_projection_dim", int)
    if heads * head_width != text:
        raise InputError(
            f"{part.folder}: config.json has {heads} heads of {head_width} and a text of width "
            f"{text}, expected {heads * head_width}"
        )
    channels = config_value(part, "in_channels", int, LATENT.channels)
    return Architecture(
        latent_channels=int(config(part).get("out_channels") or channels),
        input_channels=channels,
        text_width=0 if alone else config_value(part, "joint_attention_dim", int),
        pooled_width=config_value(part, "pooled_projection_dim", int),
        pads_text=True,
    )


def reads_tokens(part: Component) -> bool:
    """Returns whether this is a 3.5 large ControlNet, which reads the model's embedded tokens and
    no text.
    """
    values = config(part)
    return values.get("_class_name") == CONTROLNET and values.get("joint_attention_dim") is None


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Returns the entry unchanged. Raises InputError if the picture exceeds the position table, and
    for unsupported conditioning.
    """
    check_unsupported_conditioning(entry, model)
    controls = [use.control_net.control_net for use in entry.control]
    parts = [model.network, *(one for one in controls if not reads_tokens(one))]
    sizes = latent["samples"].shape[-2:]
    for part in parts:
        side = config_value(part, "pos_embed_max_size", int, 96) * config_value(
            part, "patch_size", int, 2
        )
        if max(sizes) > side:
            height, width = map(model.latent.pixels, sizes)
            most, noun = (
                model.latent.pixels(side),
                "transformer" if part is model.network else "ControlNet",
            )
            raise InputError(
                f"{part.folder}: the picture is {width}x{height} pixels, the {noun} takes at most "
                f"{most}x{most}"
            )
    return entry
