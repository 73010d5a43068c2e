"""Derives the architecture of a Z-Image transformer from its configuration. Never imports torch."""

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

TRANSFORMER, CONTROLNET = "ZImageTransformer2DModel", "ZImageControlNetModel"
THETA = 256.0  # of rotary positions
LATENT = LatentSpace(channels=16, factor=8, scale=0.3611, shift=0.1159)
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
SCHEDULER: Configuration = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
}


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a transformer or of a ControlNet, which reads no text. Raises
    InputError for another class, for models with picture conditioning or several patch sizes, and
    for later ControlNet versions.
    """
    expect_class(part, TRANSFORMER, CONTROLNET)
    values = config(part)
    if is_controlnet(part):
        return _controlnet_architecture(part)
    if values.get("siglip_feat_dim") is not None:
        raise InputError(
            f"{part.folder}: siglip_feat_dim is {values['siglip_feat_dim']!r}: models that also "
            "read pictures are not supported"
        )
    sides, frames = values.get("all_patch_size", [2]), values.get("all_f_patch_size", [1])
    if len(sides) != 1 or list(frames) != [1]:
        raise InputError(
            f"{part.folder}: config.json has several patch sizes, expected one, of one frame"
        )
    channels = config_value(part, "in_channels", int, LATENT.channels)
    return Architecture(
        latent_channels=channels,
        input_channels=channels,
        text_width=config_value(part, "cap_feat_dim", int, 2560),
        pooled_width=None,
    )


def is_controlnet(part: Component) -> bool:
    """Returns whether this is a ControlNet. All ControlNets read the model's embedded tokens."""
    return bool(config(part).get("_class_name") == CONTROLNET)


def _controlnet_architecture(part: Component) -> Architecture:
    channels, refiners = (
        config(part).get(name) for name in ("control_in_dim", "add_control_noise_refiner")
    )
    if channels != LATENT.channels or refiners is not None:
        raise InputError(
            f"{part.folder}: a ControlNet of version 2 (control_in_dim {channels}, "
            f"add_control_noise_refiner {refiners}), which is not supported, as it reads a mask "
            "and acts on the refiners: use version 1"
        )
    return Architecture(channels, channels, text_width=0, pooled_width=None)


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Returns the entry unchanged. Raises InputError for unsupported conditioning."""
    check_unsupported_conditioning(entry, model)
    return entry
