"""Derives the architecture of a Krea 2 transformer from its configuration and completes its
conditioning. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    Component,
    ConditioningEntry,
    ModelRecipe,
    ReferencePlacing,
)
from katz_graph.models.configuration import config_value, expect_class
from katz_graph.models.families.shared.conditioning import (
    check_channels,
    check_unsupported_conditioning,
)
from katz_graph.models.family import Architecture
from katz_graph.models.vae.kinds import QWEN_IMAGE

TRANSFORMER = "Krea2Transformer2DModel"
LATENT = QWEN_IMAGE.latent
PATCH = 4  # latent cells per patch
STATES = tuple(range(2, 36, 3))  # of the text encoder
UNSET: ReferencePlacing = "offset"  # the default, which no model of the family has
STILL: ReferencePlacing = "index_timestep_zero"
MU = 1.15  # of the shift of noise levels, at every picture size, as in ComfyUI


@lru_cache(maxsize=256)
def transformer_architecture(part: Component) -> Architecture:
    """Returns the architecture of a transformer. Raises InputError for another class."""
    expect_class(part, TRANSFORMER)
    channels = config_value(part, "in_channels", int, LATENT.channels * PATCH) // PATCH
    states = config_value(part, "num_text_layers", int, len(STATES))
    return Architecture(
        latent_channels=channels,
        input_channels=channels,
        text_width=states * config_value(part, "text_hidden_dim", int, 2560),
        pooled_width=None,
    )


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Removes references without a method, as ComfyUI does. Raises InputError for latents with a
    wrong channel count, for a method that the model has not, and for guidance.
    """
    references, without = entry.references, replace(entry, references=None)
    check_unsupported_conditioning(without, model)
    if references is None or references.placing == UNSET:
        return without
    if references.placing != STILL:
        raise InputError(
            f"{model.network.folder}: the model has no reference method {references.placing}: "
            f"choose {STILL}"
        )
    for reference in references.latents:
        check_channels("a reference", reference, model)
    return entry


def unused(entry: ConditioningEntry) -> str:
    """Returns, for a warning, which conditioning has no effect; empty if all has."""
    references = entry.references
    if references is None or references.placing != UNSET or not references.latents:
        return ""
    return (
        f"the model ignores the {len(references.latents)} reference latents, because they have no "
        f"method: add FluxKontextMultiReferenceLatentMethod with {STILL}"
    )
