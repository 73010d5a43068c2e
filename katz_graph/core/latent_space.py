"""Describes latent spaces (channels, pixels per cell, scale and shift) and the latents that nodes
exchange. Must not know models. Never imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypedDict

from katz_graph.core.added_fields import ADDED, Growing
from katz_graph.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

Factors = float | tuple[float, ...]
"""One value for all channels, or one for each."""

SAME = 1e-4  # relative tolerance for equal scales and shifts
FRAME_AXES = 5  # of a latent with frames, [B, C, F, h, w]


@dataclass(frozen=True, slots=True, repr=False)
class LatentSpace(Growing):
    """Describes the latents [B, channels, H/factor, W/factor] of a VAE. Models are trained on
    (latent - shift) · scale.
    """

    channels: int
    factor: int  # pixels per side of a cell
    scale: Factors  # 1 / deviation
    shift: Factors = 0.0  # mean
    frames: bool = field(default=False, metadata=ADDED)  # an axis of frames: [B, C, F, h, w]

    @classmethod
    def of_statistics(
        cls, factor: int, mean: tuple[float, ...], deviation: tuple[float, ...]
    ) -> LatentSpace:
        """Returns the space of latents with a mean and a standard deviation for each channel."""
        return cls(len(mean), factor, tuple([1 / one for one in deviation]), mean)

    def cells(self, pixels: int) -> int:
        return pixels // self.factor

    def pixels(self, cells: int) -> int:
        return cells * self.factor

    def shaped(self, latent: Tensor) -> Tensor:
        """Returns a latent with the axes of the space: one frame is a picture. Raises InputError
        for several frames in a space of pictures, and for other shapes.
        """
        if not self.frames:
            return of_pictures(latent)
        return latent if len(latent.shape) == FRAME_AXES else of_pictures(latent).unsqueeze(2)

    def normalised(self, latent: Tensor) -> Tensor:
        """Scales a VAE's latent [B, C, ...] to the model's range."""
        return (latent - _along(latent, self.shift)) * _along(latent, self.scale)

    def starting(self, latent: Tensor) -> Tensor:
        """Scales a VAE's latent to the model's range, in float32. An all-zero latent counts as
        empty and stays zero.
        """
        latent = latent.float()
        return self.normalised(latent) if latent.any() else latent

    def restored(self, latent: Tensor) -> Tensor:
        """Scales a latent [B, C, ...] from the model's range to the VAE's."""
        return latent / _along(latent, self.scale) + _along(latent, self.shift)

    def unshifted(self) -> LatentSpace:
        """Returns the space of models that are trained on latent · scale."""
        return replace(self, shift=0.0)

    def equals(self, other: LatentSpace) -> bool:
        """Returns whether two spaces are the same but for rounded scales and shifts."""
        return (self.channels, self.factor) == (other.channels, other.factor) and all(
            math.isclose(own, its, rel_tol=SAME, abs_tol=SAME * SAME)
            for owns, others in ((self.scale, other.scale), (self.shift, other.shift))
            for own, its in zip(self._each(owns), self._each(others), strict=True)
        )

    def _each(self, factors: Factors) -> tuple[float, ...]:
        return factors if isinstance(factors, tuple) else (factors,) * self.channels


def _along(latent: Tensor, factors: Factors) -> Tensor | float:
    """Returns factors for each channel as a tensor [C, 1, ...] that fits a latent [B, C, ...]."""
    if not isinstance(factors, tuple):
        return factors
    return latent.new_tensor(factors).view(-1, *[1] * (latent.ndim - 2))


@dataclass(frozen=True, slots=True)
class LinearMap:
    """Maps latent channels to red, green and blue in -1..1: one row per channel of a scaled latent,
    plus a bias.

    With nine rows per channel, it is a 3x3 convolution: one row for each cell of the neighbourhood,
    row by row.
    """

    rows: tuple[tuple[float, float, float], ...]
    bias: tuple[float, float, float] = (0.0, 0.0, 0.0)
    patch: int = 1  # cells per side that the latent packs into channels; the rows are of cells


DEFAULT_LATENT_SPACE = LatentSpace(channels=4, factor=8, scale=0.18215)
"""Assumed for latents without a model or VAE, as in ComfyUI's nodes: cells of 8x8 pixels."""


def of_pictures(latent: Tensor) -> Tensor:
    """Returns a latent [B, C, h, w] without the axis of its one frame, [B, C, 1, h, w], that packs
    may add. Raises InputError for several frames and other shapes.
    """
    axes = len(latent.shape)
    if axes == FRAME_AXES and latent.shape[2] == 1:
        return latent.squeeze(2)
    if axes == FRAME_AXES:
        raise InputError(
            f"the latent has {latent.shape[2]} frames, expected one: pictures [B, C, h, w]; cut "
            "it with LatentCutToBatch"
        )
    if axes != FRAME_AXES - 1:
        raise InputError(
            f"the latent has {axes} dimensions, expected 4: those of pictures [B, C, h, w]"
        )
    return latent


class LatentSamples(TypedDict, total=False):
    """A latent as in ComfyUI packs. `samples` are not multiplied by the VAE's scaling factor."""

    samples: Tensor  # [B, C, h, w] in cells, or of frames [B, C, F, h, w]
    # whether a sampler adds or removes the axis of one frame, [B, C, 1, h, w], from its result
    frame_axis: bool
    noise_mask: Tensor  # [B, 1, H, W], 1 = repaint
    batch_index: list[int]
