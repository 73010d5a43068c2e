"""Recipes: frozen descriptions of how to get a model, a text encoding or an image; what flows on wires instead of live weights.

Nothing here loads anything. Two equal recipes mean the same weights and the same numbers, so a recipe's digest is a cache key.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """A file as it was when it was named: a replaced file is another identity, hence another recipe."""

    path: str
    size: int  # bytes
    modified_ns: int
    header: str  # SHA-256 of a safetensors header, or of the whole file for configurations


@dataclass(frozen=True, slots=True)
class Component:
    """One module in diffusers' folder layout: its configuration and safetensors files, or a tokenizer's files."""

    folder: str
    files: tuple[FileIdentity, ...]


@dataclass(frozen=True, slots=True)
class Lora:
    """One LoRA file at a strength. Its place in a recipe's tuple is its place in the graph."""

    file: FileIdentity
    strength: float


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """A UNet with LoRAs; `scheduler` holds the noise table and the kind of prediction it was trained for.

    `latent_scale` is what a VAE's latent is multiplied by to become what the UNet was trained on.
    """

    unet: Component
    scheduler: Component
    latent_scale: float = 0.18215
    loras: tuple[Lora, ...] = ()

    def with_lora(self, lora: Lora) -> ModelRecipe:
        return replace(self, loras=(*self.loras, lora))


@dataclass(frozen=True, slots=True)
class TextEncoderRecipe:
    encoder: Component
    tokenizer: Component


@dataclass(frozen=True, slots=True)
class ClipRecipe:
    """One text encoder (SD1.5, SD2) or two (SDXL), with LoRAs. `last_layer` is ComfyUI's stop_at_clip_layer; None is the family's own."""

    encoders: tuple[TextEncoderRecipe, ...]
    loras: tuple[Lora, ...] = ()
    last_layer: int | None = None

    def with_lora(self, lora: Lora) -> ClipRecipe:
        return replace(self, loras=(*self.loras, lora))


@dataclass(frozen=True, slots=True)
class VaeRecipe:
    vae: Component


@dataclass(frozen=True, slots=True)
class ControlNetRecipe:
    control_net: Component


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture inside a recipe: equal when its bytes are equal."""

    digest: str
    pixels: Tensor = field(compare=False, repr=False)  # float32 [B, H, W, C], 0..1

    @classmethod
    def of(cls, pixels: Tensor) -> Picture:
        data = pixels.detach().cpu().contiguous()
        shape = str((tuple(data.shape), str(data.dtype))).encode()
        return cls(hashlib.sha256(shape + data.numpy().tobytes()).hexdigest(), data)


@dataclass(frozen=True, slots=True)
class ControlUse:
    """One ControlNet applied to a conditioning: reference image, strength and the window of the schedule (fractions) it acts in."""

    control_net: ControlNetRecipe
    image: Picture
    strength: float = 1.0
    start_percent: float = 0.0
    end_percent: float = 1.0


@dataclass(frozen=True, slots=True)
class ConditioningEntry:
    """One prompt with what acts on it; encoded when a sampler needs it."""

    clip: ClipRecipe
    text: str
    control: tuple[ControlUse, ...] = ()
    strength: float = 1.0
    start_percent: float = 0.0
    end_percent: float = 1.0

    def with_control(self, use: ControlUse) -> ConditioningEntry:
        return replace(self, control=(*self.control, use))


Conditioning = tuple[ConditioningEntry, ...]


@lru_cache(maxsize=4096)
def digest(recipe: object) -> str:
    """SHA-256 of a recipe's repr, which is complete: frozen dataclasses of strings and numbers, a picture's digest for its pixels."""
    return hashlib.sha256(repr(recipe).encode()).hexdigest()
