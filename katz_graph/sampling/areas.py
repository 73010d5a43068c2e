"""Weights and blends predictions of parts of the picture, and masks the part of a latent to
repaint. Knows tensors only.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from katz_graph.core.latent_space import FRAME_AXES
from katz_graph.host.transfer import to_device
from katz_graph.sampling.path import Path

FEATHER = 8  # cells over which an area's border fades, at most a quarter of its side
SMALLEST_BOX = 8  # minimum side of a box around a mask, in cells
NOTHING = 1e-37  # added to sums of weights, to avoid division by zero


@dataclass(frozen=True, slots=True)
class WeightedPrediction:
    """Holds a prediction times its weights, and the weights (0 outside its part)."""

    total: Tensor  # [B, C, h, w]
    weight: Tensor  # [B, 1, h, w]


def weigh(
    prediction: Tensor, like: Tensor, strength: Tensor, top: int, left: int, mask: Tensor | None
) -> WeightedPrediction:
    """Weights a prediction [B, C, a, b] of the part of a latent [B, C, h, w] that begins at top and
    left, in cells.

    The weight is the strength [B] times the mask (fitted to the whole latent). Without one, the
    weight fades towards inner borders.
    """
    height, width = prediction.shape[-2:]
    rows, columns = slice(top, top + height), slice(left, left + width)
    part = _faded(like, top, left, height, width) if mask is None else mask[..., rows, columns]
    total, weight = torch.zeros_like(like), torch.zeros_like(like[:, :1])
    weight[..., rows, columns] = part * strength.reshape(-1, *[1] * (like.ndim - 1))
    total[..., rows, columns] = prediction * weight[..., rows, columns]
    return WeightedPrediction(total, weight)


def summed(weighted: Iterable[WeightedPrediction], like: Tensor) -> WeightedPrediction:
    """Sums weighted predictions; without any, the weight is 0 everywhere."""
    total, weight = torch.zeros_like(like), torch.zeros_like(like[:, :1])
    for one in weighted:
        total, weight = total + one.total, weight + one.weight
    return WeightedPrediction(total, weight)


def blend(weighted: Iterable[WeightedPrediction], like: Tensor) -> Tensor:
    """Returns the weighted mean [B, C, h, w]; 0 where all weights are 0."""
    together = summed(weighted, like)
    return together.total / (together.weight + NOTHING)


def mask_box(mask: Tensor, height: int, width: int) -> tuple[int, int, int, int]:
    """Returns top, left, height and width, in cells, of the box around a mask [..., H, W] on a
    latent of this size. Each side has at least 8 cells.
    """
    flat = mask.reshape(-1, 1, *mask.shape[-2:]).float()
    covered = (
        interpolate(flat, size=(height, width), mode="bilinear").abs().amax(dim=(0, 1)).nonzero()
    )
    if not len(covered):
        return 0, 0, SMALLEST_BOX, SMALLEST_BOX
    (top, left), (bottom, right) = covered.amin(dim=0).tolist(), covered.amax(dim=0).tolist()
    return top, left, max(SMALLEST_BOX, bottom - top + 1), max(SMALLEST_BOX, right - left + 1)


def _faded(like: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Returns [1, 1, height, width]: 1, falling linearly towards sides inside the picture."""
    rows = _ramp(height, top > 0, top + height < like.shape[-2], like.device)
    columns = _ramp(width, left > 0, left + width < like.shape[-1], like.device)
    return (rows[:, None] * columns[None, :]).to(like.dtype)[None, None]


def _ramp(length: int, at_start: bool, at_end: bool, device: torch.device) -> Tensor:
    ramp = torch.ones(length, device=device)
    steps = min(FEATHER, length // 4)
    rising = torch.arange(1, steps + 1, device=device) / max(steps, 1)
    if at_start:
        ramp[:steps] *= rising
    if at_end:
        ramp[length - steps :] *= rising.flip(0)
    return ramp


def fit_mask(mask: Tensor, latent: Tensor) -> Tensor:
    """Fits [H, W], [B, H, W] or [B, 1, H, W] to [B', 1, h, w], or [B', 1, 1, h, w] for a latent of
    frames: bilinear to the latent's size, repeated to its batch, in its dtype and on its device.
    """
    mask = to_device(mask.reshape(-1, 1, *mask.shape[-2:]).to(latent.dtype), latent.device)
    mask = interpolate(mask, size=latent.shape[-2:], mode="bilinear")
    mask = mask[torch.arange(len(latent), device=mask.device) % len(mask)]
    return mask.unsqueeze(2) if latent.ndim == FRAME_AXES else mask


class LatentMask:
    """Applies a mask, 1 = repaint, 0 = preserve. In the preserved part, the model's input is the
    noised original, and the prediction is the original.
    """

    def __init__(self, mask: Tensor, latent: Tensor, noise: Tensor, path: Path) -> None:
        """Takes a mask of any size, and the original and unit noise [B, C, h, w]."""
        self._mask, self._latent, self._noise = fit_mask(mask, latent), latent, noise
        self._path = path

    def opened(self, rest: float, strength: float) -> LatentMask:
        """Returns the mask blended by `strength` with the binarised mask: 1 where it is at least
        `rest`, else 0. `rest` is the remaining part of the schedule, from 1 to 0.
        """
        other = copy(self)
        whole = (self._mask >= rest).to(self._mask.dtype)
        other._mask = torch.lerp(self._mask, whole, strength) if strength < 1 else whole
        return other

    def before(self, x: Tensor, sigma: float) -> Tensor:
        original = self._path.noised(self._latent, self._noise, sigma)
        return x * self._mask + original * (1 - self._mask)

    def after(self, denoised: Tensor) -> Tensor:
        return denoised * self._mask + self._latent * (1 - self._mask)
