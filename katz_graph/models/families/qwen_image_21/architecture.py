"""Derives the architecture of a Qwen-Image 2.1 transformer from its configuration and completes its
conditioning. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, ConditioningEntry, ModelRecipe, TextLayout
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.families.shared.conditioning import (
    check_channels,
    check_unsupported_conditioning,
)
from katz_graph.models.family import Architecture, Configuration
from katz_graph.models.vae.kinds import QWEN_IMAGE_21

TRANSFORMER = "QwenImage21Transformer2DModel"
LATENT = QWEN_IMAGE_21.latent
TEMPLATE = (
    "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
LAYOUT = TextLayout(
    template=TEMPLATE, raw=True, opening="<|im_start|>", empty=" ", dropped="system"
)
SLOT = 4  # tokens of a reference per vision token of the text
MAX_REFERENCES = 16
THETA = 10_000  # of rotary positions
MU = 0.69  # of the shift of noise levels, at every size, as in ComfyUI
SCHEDULER: Configuration = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "use_dynamic_shifting": True,
    "base_shift": MU,
    "max_shift": MU,
}


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a transformer. Raises InputError for another class, for patches
    of several cells, and for text that is modulated with the picture's timestep; no published model
    has these.
    """
    expect_class(part, TRANSFORMER)
    if config(part).get("causal_condition", True) is not True:
        raise InputError(
            f"{part.folder}: config.json: causal_condition is false, expected true: models whose "
            "text is modulated with the picture's timestep are not supported"
        )
    if (side := config_value(part, "patch_size", int, 1)) != 1:
        raise InputError(f"{part.folder}: config.json: patch_size is {side}, expected 1")
    channels = config_value(part, "in_channels", int, LATENT.channels)
    return Architecture(
        latent_channels=int(config(part).get("out_channels") or channels),
        input_channels=channels,
        text_width=config_value(part, "context_in_dim", int, 4096),
        pooled_width=None,
    )


def prefix_values(part: Component) -> tuple[int, int]:
    """Counts the blocks, and the values of a token's keys and values in one."""
    heads = config_value(part, "num_attention_heads", int, 32)
    values = 2 * heads * config_value(part, "attention_head_dim", int, 128)
    return config_value(part, "num_layers", int, 32), values


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Returns the entry unchanged. Raises InputError for references of a wrong channel count, for
    too many of them, and for guidance.
    """
    references = entry.references
    check_unsupported_conditioning(replace(entry, references=None), model)
    seen = () if references is None else references.latents
    if len(seen) > MAX_REFERENCES:
        raise InputError(
            f"{model.network.folder}: the conditioning has {len(seen)} references, the model reads "
            f"at most {MAX_REFERENCES}"
        )
    for reference in seen:
        check_channels("a reference", reference, model)
    return entry
