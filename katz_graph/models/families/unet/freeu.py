"""Scales backbone and skips before their concatenation in an up block: FreeU (Si et al. 2024,
"FreeU: Free Lunch in Diffusion U-Net").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.patches import FreeU
from katz_graph.models.families.unet.blocks import SkipHook


def skip_hook(unet: Any, patches: Sequence[FreeU]) -> SkipHook | None:
    """Returns the hook that `unet.decode` calls before each concatenation; None without patches.
    Several patches apply in order.

    As in the authors' code, the first factors apply if the backbone is four times as wide as the
    model's first block, the second if it is twice as wide.
    """
    if not patches:
        return None
    width = unet.config.block_out_channels[0]

    def hook(up_block: int, hidden: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        for patch in patches:
            factors = {4 * width: (patch.b1, patch.s1), 2 * width: (patch.b2, patch.s2)}.get(
                hidden.shape[1]
            )
            if factors is not None:
                hidden = scale_backbone(hidden, factors[0], by_mean=patch.version == 2)
                skip = scale_low_frequencies(skip, factors[1])
        return hidden, skip

    return hook


def scale_backbone(hidden: Tensor, factor: float, by_mean: bool = False) -> Tensor:
    """Multiplies the first half of the channels of [B, C, h, w] by `factor`.

    If `by_mean` (the authors' second version), multiplies by 1 + (factor - 1) · m, where m is each
    sample's channel mean, normalised to 0..1 over the picture.
    """
    if factor == 1.0:
        return hidden
    scale: Tensor | float = factor
    if by_mean:
        mean = hidden.mean(dim=1, keepdim=True)
        low, high = mean.amin(dim=(2, 3), keepdim=True), mean.amax(dim=(2, 3), keepdim=True)
        scale = 1 + (factor - 1) * torch.where(high > low, (mean - low) / (high - low), 0.0)
    half = hidden.shape[1] // 2
    return torch.cat([hidden[:, :half] * scale, hidden[:, half:]], dim=1)


def scale_low_frequencies(values: Tensor, scale: float) -> Tensor:
    """Multiplies the lowest spatial frequencies of [B, C, h, w] (-1 and 0) by `scale`."""
    if scale == 1.0:
        return values
    height, width = values.shape[-2:]
    spectrum = torch.fft.fftshift(torch.fft.fftn(values.float(), dim=(-2, -1)), dim=(-2, -1))
    mask = torch.ones(height, width, device=values.device)
    mask[height // 2 - 1 : height // 2 + 1, width // 2 - 1 : width // 2 + 1].fill_(scale)
    filtered: Tensor = torch.fft.ifftn(
        torch.fft.ifftshift(spectrum * mask, dim=(-2, -1)), dim=(-2, -1)
    ).real
    return filtered.to(values.dtype)
