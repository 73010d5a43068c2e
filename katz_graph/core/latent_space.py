"""Describes latents: their channels, the pixels that a cell stands for, and the range that models
are trained on; and latents as nodes pass them on. Must not know models. Never imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LatentSpace:
    """Describes the latents [B, channels, H/factor, W/factor] of a VAE. A model is trained on
    (latent - shift) · scale.
    """

    channels: int
    factor: int  # pixels of a picture along one side of a cell
    scale: float
    shift: float = 0.0

    def cells(self, pixels: int) -> int:
        return pixels // self.factor

    def pixels(self, cells: int) -> int:
        return cells * self.factor

    def normalised(self, latent: Tensor) -> Tensor:
        """Maps a VAE's latent to what a model is trained on."""
        return (latent - self.shift) * self.scale

    def starting(self, latent: Tensor) -> Tensor:
        """Maps a VAE's latent to the float32 one that noise is added to: normalised, but for an
        empty latent, all zeros, which is no picture and stays as it is.
        """
        latent = latent.float()
        return self.normalised(latent) if latent.any() else latent

    def restored(self, latent: Tensor) -> Tensor:
        """Maps what a model is trained on to a VAE's latent."""
        return latent / self.scale + self.shift


@dataclass(frozen=True, slots=True)
class LinearMap:
    """Red, green and blue in -1..1 that each channel of a scaled latent adds to a cell, and what is
    added everywhere.

    With nine times as many rows they are those of the channel's cells around it, row by row.
    """

    rows: tuple[tuple[float, float, float], ...]
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)


DEFAULT_LATENT_SPACE = LatentSpace(channels=4, factor=8, scale=0.18215)
"""What a latent without a model or VAE beside it is taken for, as ComfyUI's nodes take it: a size
in pixels becomes cells of eight.
"""


class LatentSamples(TypedDict, total=False):
    """A latent as ComfyUI packs hold it. The samples are the VAE's own, not multiplied by its
    scaling factor.
    """

    samples: Tensor  # [B, C, h, w] in cells
    noise_mask: Tensor  # [B, 1, H, W], 1 = repaint
    batch_index: list[int]
