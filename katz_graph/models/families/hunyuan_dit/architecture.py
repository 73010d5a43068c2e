"""Derives the architecture of a HunyuanDiT transformer from its configuration and completes its
conditioning. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Component, ConditioningEntry, ModelRecipe, Sizes
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.families.shared.conditioning import check_unsupported_conditioning
from katz_graph.models.family import Architecture, Configuration

TRANSFORMER = "HunyuanDiT2DModel"
CONTROLNET = "HunyuanDiT2DControlNetModel"
LATENT = LatentSpace(channels=4, factor=8, scale=0.13025)
LENGTHS = 77, 256  # tokens of BERT's and mT5's text
ORIGINAL = 1024  # pixels a side; default original size before version 1.2


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a transformer or ControlNet. Raises InputError for another class
    and for inconsistent numbers.
    """
    expect_class(part, TRANSFORMER, CONTROLNET)
    counted = "num_layers", 28
    if config(part)["_class_name"] == CONTROLNET:
        counted = "transformer_num_layers", 40
    heads, head_width, width, blocks = (
        config_value(part, name, int, usual)
        for name, usual in (
            ("num_attention_heads", 16),
            ("attention_head_dim", 88),
            ("hidden_size", 1152),
            counted,
        )
    )
    if heads * head_width != width or head_width % 4:
        raise InputError(
            f"{part.folder}: config.json has {heads} heads of {head_width} and tokens of width "
            f"{width}, expected {heads * head_width}, and a head width divisible by 4"
        )
    if blocks % 2:
        raise InputError(
            f"{part.folder}: config.json has {blocks} blocks, expected an even number: the second "
            "half reads the first"
        )
    lengths = tuple(
        config_value(part, name, int, usual)
        for name, usual in zip(("text_len", "text_len_t5"), LENGTHS, strict=True)
    )
    if lengths != LENGTHS:
        raise InputError(
            f"{part.folder}: config.json has texts of {lengths[0]} and {lengths[1]} tokens, "
            f"expected {LENGTHS[0]} and {LENGTHS[1]}"
        )
    channels = config_value(part, "in_channels", int, LATENT.channels)
    return Architecture(
        latent_channels=channels,
        input_channels=channels,
        text_width=max(
            config_value(part, name, int, usual)
            for name, usual in (("cross_attention_dim", 1024), ("cross_attention_dim_t5", 2048))
        ),
        pooled_width=None,
    )


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Adds the default sizes for versions that take them, if the conditioning sets none. Raises
    InputError for unsupported conditioning.
    """
    check_unsupported_conditioning(entry, model)
    if not config(model.network).get("use_style_cond_and_image_meta_size", True):
        return replace(entry, sizes=None)
    height, width = map(model.latent.pixels, latent["samples"].shape[-2:])
    default = Sizes(ORIGINAL, ORIGINAL, target_height=height, target_width=width)
    return replace(entry, sizes=entry.sizes or default)


def trained_noise(part: Component) -> Configuration:
    """Returns the scheduler configuration; versions before 1.2 were trained with more noise."""
    first = config(part).get("use_style_cond_and_image_meta_size", True)
    return {
        "_class_name": "DDPMScheduler",
        "num_train_timesteps": 1000,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "beta_end": 0.03 if first else 0.018,
        "prediction_type": "v_prediction",
    }
