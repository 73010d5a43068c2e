"""Describes latent spaces (channels, pixels per cell, scale and shift) and the latents that nodes
exchange. Must not know models. Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LatentSpace:
    """Describes the latents [B, channels, H/factor, W/factor] of a VAE. Models are trained on
    (latent - shift) · scale.
    """

    channels: int
    factor: int  # pixels per side of a cell
    scale: float
    shift: float = 0.0

    def cells(self, pixels: int) -> int:
        return pixels // self.factor

    def pixels(self, cells: int) -> int:
        return cells * self.factor

    def normalised(self, latent: Tensor) -> Tensor:
        """Scales a VAE's latent to the model's range."""
        return (latent - self.shift) * self.scale

    def starting(self, latent: Tensor) -> Tensor:
        """Scales a VAE's latent to the model's range, in float32. An all-zero latent counts as
        empty and stays zero.
        """
        latent = latent.float()
        return self.normalised(latent) if latent.any() else latent

    def restored(self, latent: Tensor) -> Tensor:
        """Scales a latent from the model's range to the VAE's."""
        return latent / self.scale + self.shift


@dataclass(frozen=True, slots=True)
class LinearMap:
    """Maps latent channels to red, green and blue in -1..1: one row per channel of a scaled latent,
    plus a bias.

    With nine rows per channel, it is a 3x3 convolution: one row for each cell of the neighbourhood,
    row by row.
    """

    rows: tuple[tuple[float, float, float], ...]
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)


DEFAULT_LATENT_SPACE = LatentSpace(channels=4, factor=8, scale=0.18215)
"""Assumed for latents without a model or VAE, as in ComfyUI's nodes: cells of 8x8 pixels."""


class LatentSamples(TypedDict, total=False):
    """A latent as in ComfyUI packs. `samples` are not multiplied by the VAE's scaling factor."""

    samples: Tensor  # [B, C, h, w] in cells
    noise_mask: Tensor  # [B, 1, H, W], 1 = repaint
    batch_index: list[int]
