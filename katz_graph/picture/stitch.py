"""Joins two batches of pictures [B, H, W, C], side by side or above one another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.picture.batch import like_channels, same_channels

COLOURS = {"white": (1.0, 1.0, 1.0), "black": (0.0, 0.0, 0.0), "red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0), "blue": (0.0, 0.0, 1.0)}


def stitch(first: Tensor, second: Tensor, sideways: bool, gap: int, colour: str) -> Tensor:
    """Puts the second to the right of the first, or below it, after `gap` pixels. The smaller is
    centred on black, and the shorter batch goes on with its last picture.
    """
    first, second = same_channels(first, second)
    batch = max(len(first), len(second))
    across = 1 if sideways else 2
    size = max(first.shape[across], second.shape[across])
    first, second = (_centred(_continued(picture, batch), size, across) for picture in (first, second))
    if not gap:
        return torch.cat([first, second.to(first)], dim=3 - across)
    shape = (batch, size, gap, 3) if sideways else (batch, gap, size, 3)
    space = like_channels(first.new_tensor(COLOURS[colour]).expand(shape), first.shape[-1])
    return torch.cat([first, space, second.to(first)], dim=3 - across)


def _continued(pictures: Tensor, batch: int) -> Tensor:
    return torch.cat([pictures, pictures[-1:].expand(batch - len(pictures), -1, -1, -1)])


def _centred(pictures: Tensor, size: int, dimension: int) -> Tensor:
    missing = size - pictures.shape[dimension]
    before, after = missing // 2, missing - missing // 2
    return F.pad(pictures, (0, 0, 0, 0, before, after) if dimension == 1 else (0, 0, before, after))
