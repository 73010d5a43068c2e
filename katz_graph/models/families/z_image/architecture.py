"""Tells the shape of a transformer of Z-Image from its configuration. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from katz_graph.errors import InputError
from katz_graph.latent_space import LatentSpace
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.families.shared.conditioning import check_told
from katz_graph.models.family import Architecture, Configuration
from katz_graph.recipe import Component, ConditioningEntry, ModelRecipe

TRANSFORMER = "ZImageTransformer2DModel"
LATENT = LatentSpace(channels=16, factor=8, scale=0.3611, shift=0.1159)
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
SCHEDULER: Configuration = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
}


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the shape of a transformer. InputError for another class, and for one that reads
    pictures beside the text, or patches of several sizes.
    """
    expect_class(part, TRANSFORMER)
    values = config(part)
    if values.get("siglip_feat_dim") is not None:
        raise InputError(
            f"{part.folder}: siglip_feat_dim is {values['siglip_feat_dim']!r}: models that read "
            "pictures beside the text are not supported"
        )
    sides, frames = values.get("all_patch_size", [2]), values.get("all_f_patch_size", [1])
    if len(sides) != 1 or list(frames) != [1]:
        raise InputError(
            f"{part.folder}: config.json gives several sizes of patches, expected one of one frame"
        )
    channels = config_value(part, "in_channels", int, LATENT.channels)
    return Architecture(
        latent_channels=channels,
        input_channels=channels,
        text_width=config_value(part, "cap_feat_dim", int, 2560),
        pooled_width=None,
    )


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Returns the entry as it is. InputError for what the family has not."""
    check_told(entry, model)
    return entry
