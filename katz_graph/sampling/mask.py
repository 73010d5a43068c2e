"""Repainting a part of a latent: a mask wraps each evaluation, before and after, and never touches the sampler's own state."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

REDRAWN_MASK_NOISE = frozenset({"ddim"})
"""Samplers under which the kept part is noised with its own draw, seed + 1, instead of the initial noise."""


def fit_mask(mask: Tensor, latent: Tensor) -> Tensor:
    """[H, W], [B, H, W] or [B, 1, H, W] -> [B', 1, h, w], bilinear to the latent's size, repeated to its batch, in its dtype and device."""
    mask = mask.reshape(-1, 1, *mask.shape[-2:]).to(latent)
    mask = interpolate(mask, size=latent.shape[-2:], mode="bilinear")
    return mask[torch.arange(len(latent), device=mask.device) % len(mask)]


class LatentMask:
    """1 = repaint, 0 = keep; the kept part shows the model the original at its noise level, and is predicted as the original."""

    def __init__(self, mask: Tensor, latent: Tensor, noise: Tensor) -> None:
        """A mask in any size, the original [B, C, h, w] and unit noise of its shape."""
        self._mask, self._latent, self._noise = fit_mask(mask, latent), latent, noise

    def before(self, x: Tensor, sigma: float) -> Tensor:
        return x * self._mask + (self._latent + self._noise * sigma) * (1 - self._mask)

    def after(self, denoised: Tensor) -> Tensor:
        return denoised * self._mask + self._latent * (1 - self._mask)
