"""Finds and removes LoRAs in recipes. Never imports torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from katz_graph.core.recipe import (
    Averaged,
    ClipRecipe,
    ConditioningEntry,
    FileIdentity,
    Given,
    Joined,
    Lora,
    ModelRecipe,
    Prompt,
    Zeroed,
)
from katz_graph.models.text.recipe import clips


@dataclass(frozen=True, slots=True)
class LoraUse:
    """Holds the strength of one LoRA file in a sampler: the maximum magnitude in networks, and in
    text encoders.
    """

    file: FileIdentity
    network: float = 0.0
    text: float = 0.0


def clips_of(value: Any) -> Sequence[ClipRecipe]:
    """Returns the text encoders of an encoded text; other values have none."""
    match value:
        case Prompt() | Joined() | Averaged() | Zeroed() | Given():
            return clips(value)
    return ()


def loras_of(value: Any) -> tuple[Lora, ...]:
    """Returns the LoRAs of a model recipe, of text encoders, or of an encoded text's encoders.
    Other values have none.
    """
    match value:
        case ModelRecipe() | ClipRecipe():
            return tuple(lora for lora in value.loras if lora.strength)
    return tuple(lora for clip in clips_of(value) for lora in loras_of(clip))


def lora_uses(values: Iterable[Any]) -> dict[FileIdentity, LoraUse]:
    """Returns the LoRA uses of a sampler's inputs, in order of first occurrence."""
    found: dict[FileIdentity, LoraUse] = {}
    for value in values:
        of_network = isinstance(value, ModelRecipe)
        sums: dict[FileIdentity, float] = {}  # a recipe may list a file twice
        for lora in loras_of(value):
            sums[lora.file] = sums.get(lora.file, 0.0) + abs(lora.strength)
        for file, strength in sums.items():
            use = found.get(file, LoraUse(file))
            found[file] = (
                replace(use, network=max(use.network, strength))
                if of_network
                else replace(use, text=max(use.text, strength))
            )
    return found


def without(absent: Collection[FileIdentity], value: Any) -> Any:
    """Returns a recipe without the LoRAs of these files. Returns other values unchanged."""
    if not absent:
        return value
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
        case Zeroed() | ConditioningEntry():
            return replace(value, encoding=bare(value.encoding))
        case tuple():
            return tuple(map(bare, value))
    return value
