"""Derives the architecture of a FLUX.2 transformer from its configuration and completes its
conditioning. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.patches import references_apart
from katz_graph.core.recipe import Component, ConditioningEntry, ModelRecipe, ReferencePlacing
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.families.shared.conditioning import check_channels
from katz_graph.models.family import Architecture, Configuration
from katz_graph.models.vae.kinds import FLUX2

TRANSFORMER = "Flux2Transformer2DModel"
LATENT = FLUX2.latent
SELF_ATTENDING: ReferencePlacing = "apart"
GUIDANCE = 3.5  # default for models with guidance embedding
MU = 2.02  # of the shift of noise levels, at every size, as in ComfyUI
SCHEDULER: Configuration = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "use_dynamic_shifting": True,
    "base_shift": MU,
    "max_shift": MU,
}


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a transformer. Raises InputError for another class."""
    expect_class(part, TRANSFORMER)
    channels = config_value(part, "in_channels", int, LATENT.channels)
    return Architecture(
        latent_channels=int(config(part).get("out_channels") or channels),
        input_channels=channels,
        text_width=config_value(part, "joint_attention_dim", int, 15360),
        pooled_width=None,
    )


def is_guided(part: Component) -> bool:
    """Returns whether a transformer is guidance-distilled, with guidance as an input."""
    return bool(config(part).get("guidance_embeds", True))


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Adds the default guidance and the method of reference latents if not set. Raises InputError
    for latents with a wrong channel count, and for a method that the model has not.
    """
    guidance, references = entry.guidance if is_guided(model.network) else "off", entry.references
    if references is not None:
        for reference in references.latents:
            check_channels("a reference", reference, model)
        if references.placing not in ("offset", "index", SELF_ATTENDING):
            raise InputError(
                f"{model.network.folder}: the model has no reference method "
                f"{references.placing}: choose index"
            )
        apart = references_apart(model.patches)
        references = replace(references, placing=SELF_ATTENDING if apart else "index")
    guidance = GUIDANCE if guidance is None else guidance
    return replace(entry, guidance=guidance, references=references)
