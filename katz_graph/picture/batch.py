"""Matches the lengths and channels of batches, cuts batches, and joins two batches of pictures side
by side or vertically.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import FRAME_AXES

COLOURS = {
    "white": (1.0, 1.0, 1.0),
    "black": (0.0, 0.0, 0.0),
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.0, 0.0, 1.0),
}


def repeated(batch: Tensor, length: int) -> Tensor:
    """Repeats or truncates a batch to a length: [B, ...] -> [length, ...]."""
    if len(batch) == length:
        return batch
    return batch[torch.arange(length, device=batch.device) % len(batch)]


def each_frame(planes: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies a change of planes [B, C, H, W] to each frame of [B, C, F, H, W]."""
    if planes.ndim != FRAME_AXES:
        return change(planes)
    return torch.stack([change(frame) for frame in planes.unbind(2)], dim=2)


def window(length: int, start: int, count: int) -> slice:
    """Returns the slice of up to `count` elements from `start` in a batch of this length; a
    negative start counts from the end.
    """
    first = min(length - 1, start) if start >= 0 else max(0, length + start)
    return slice(first, min(length, first + count))


def like_channels(picture: Tensor, channels: int) -> Tensor:
    """Changes the channel count: [B, H, W, C] -> [B, H, W, channels]. Adds channels of ones (opaque
    white) or drops the last.
    """
    missing = channels - picture.shape[-1]
    if missing <= 0:
        return picture[..., :channels]
    return torch.cat([picture, picture.new_ones(*picture.shape[:-1], missing)], dim=-1)


def same_channels(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Expands both to the larger channel count."""
    channels = max(first.shape[-1], second.shape[-1])
    return like_channels(first, channels), like_channels(second, channels)


def cut(batch: Tensor, x: int, y: int, width: int, height: int, what: str) -> Tensor:
    """Crops [B, H, W, ...] to the part of a window inside it. Raises InputError if no part is."""
    high, wide = batch.shape[1:3]
    if x >= wide or y >= high:
        raise InputError(
            f"the window begins at x {x}, y {y}, outside of the {what}, which is {wide}x{high}"
        )
    return batch[:, y : y + height, x : x + width]


def stitch(first: Tensor, second: Tensor, sideways: bool, gap: int, colour: str) -> Tensor:
    """Places the second to the right of the first, or below it, after `gap` pixels. Centres the
    smaller on black, and repeats the last picture of the shorter batch.
    """
    first, second = same_channels(first, second)
    batch = max(len(first), len(second))
    across = 1 if sideways else 2
    size = max(first.shape[across], second.shape[across])
    first, second = (
        _centred(_continued(picture, batch), size, across) for picture in (first, second)
    )
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
