"""Derives the architecture of an Anima network from its configuration and checks its conditioning.
Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from katz_graph.core.recipe import Component, ConditioningEntry, ModelRecipe
from katz_graph.models.configuration import config_value, expect_class
from katz_graph.models.families.shared.conditioning import check_unsupported_conditioning
from katz_graph.models.family import Architecture, Configuration
from katz_graph.models.vae.kinds import QWEN_IMAGE

TRANSFORMER = "AnimaTransformer"
LATENT = QWEN_IMAGE.latent
WORDS = 512  # of T5, which the network reads
EXTRAPOLATION = 1.0, 4.0, 4.0  # of rotary positions of frames, rows and columns
SCHEDULER: Configuration = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
}


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a network. Raises InputError for another class."""
    expect_class(part, TRANSFORMER)
    channels = config_value(part, "in_channels", int, LATENT.channels)
    return Architecture(
        latent_channels=channels,
        input_channels=channels,
        text_width=config_value(part, "source_dim", int, 1024),
        pooled_width=None,
    )


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Returns the entry unchanged. Raises InputError for unsupported conditioning."""
    check_unsupported_conditioning(entry, model)
    return entry
