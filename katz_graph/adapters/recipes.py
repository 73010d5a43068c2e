"""Finds the LoRAs in recipes, and takes some of them out. Never imports torch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from katz_graph.models.text.recipe import clips
from katz_graph.recipe import (
    Averaged,
    ClipRecipe,
    FileIdentity,
    Given,
    Joined,
    Lora,
    ModelRecipe,
    Prompt,
    Zeroed,
)


def loras_of(value: Any) -> tuple[Lora, ...]:
    """Returns the LoRAs that a network, text encoders, or those of a text's encoding take. Others
    have none.
    """
    match value:
        case ModelRecipe() | ClipRecipe():
            return tuple(lora for lora in value.loras if lora.strength)
        case Prompt() | Joined() | Averaged() | Zeroed() | Given():
            return tuple(lora for clip in clips(value) for lora in loras_of(clip))
    return ()


def without(absent: Collection[FileIdentity], value: Any) -> Any:
    """Returns a recipe without the LoRAs of these files; what has none is returned as it is."""
    bare = partial(without, absent)
    match value:
        case ModelRecipe() | ClipRecipe() if any(lora.file in absent for lora in value.loras):
            return replace(
                value, loras=tuple(lora for lora in value.loras if lora.file not in absent)
            )
        case Prompt():
            return replace(value, clip=bare(value.clip))
        case Joined() | Averaged():
            return replace(value, first=bare(value.first), second=bare(value.second))
        case Zeroed():
            return replace(value, encoding=bare(value.encoding))
    return value
