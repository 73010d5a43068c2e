"""Blurs and sharpens pictures [B, H, W, C] with a Gaussian, and blends two pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

OVERSHOOT = 10.0  # how much of what a blur takes away a sharpening of 1 adds


def blur(image: Tensor, radius: int, sigma: float) -> Tensor:
    """Blurs with a Gaussian of 2·radius + 1 pixels; sigma is in units of the radius, as in ComfyUI.
    The border is mirrored.
    """
    positions = torch.linspace(-1, 1, 2 * radius + 1, dtype=image.dtype, device=image.device)
    weights = torch.exp(-positions.square() / (2 * sigma**2))
    weights = weights / weights.sum()
    planes = image.movedim(-1, 1)
    channels = planes.shape[1]
    mode = "reflect" if radius < min(planes.shape[2:]) else "replicate"  # a mirror needs a picture larger than the radius
    padded = F.pad(planes, (radius,) * 4, mode=mode)
    down = F.conv2d(padded, weights.view(1, 1, -1, 1).repeat(channels, 1, 1, 1), groups=channels)
    return F.conv2d(down, weights.view(1, 1, 1, -1).repeat(channels, 1, 1, 1), groups=channels).movedim(1, -1)


def sharpen(image: Tensor, radius: int, sigma: float, alpha: float) -> Tensor:
    """Sharpens by unsharp masking: image + 10·alpha·(image - blurred), in 0..1."""
    return (image + OVERSHOOT * alpha * (image - blur(image, radius, sigma))).clamp(0, 1)


def _overlay(below: Tensor, above: Tensor) -> Tensor:
    return torch.where(below <= 0.5, 2 * below * above, 1 - 2 * (1 - below) * (1 - above))


def _soft_light(below: Tensor, above: Tensor) -> Tensor:
    """Blends by soft light (W3C Compositing and Blending, §9.1.9)."""
    root = torch.where(below <= 0.25, ((16 * below - 12) * below + 4) * below, below.clamp(min=0).sqrt())
    return torch.where(above <= 0.5, below - (1 - 2 * above) * below * (1 - below), below + (2 * above - 1) * (root - below))


BLENDS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normal": lambda below, above: above,
    "multiply": lambda below, above: below * above,
    "screen": lambda below, above: 1 - (1 - below) * (1 - above),
    "overlay": _overlay,
    "soft_light": _soft_light,
    "difference": lambda below, above: below - above,  # signed in the ecosystem
}
