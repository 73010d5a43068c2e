"""Brings two batches to one length, and two pictures to the same channels."""

from __future__ import annotations

import torch
from torch import Tensor

from katz_graph.errors import InputError


def repeated(batch: Tensor, length: int) -> Tensor:
    """Repeats a short batch from its start, cuts a long one: [B, ...] -> [length, ...]."""
    if len(batch) == length:
        return batch
    return batch[torch.arange(length, device=batch.device) % len(batch)]


def window(length: int, start: int, count: int) -> slice:
    """Returns the slice of a batch of this length: `count` from `start`, as far as there are; a
    negative start counts from the end.
    """
    first = min(length - 1, start) if start >= 0 else max(0, length + start)
    return slice(first, min(length, first + count))


def like_channels(picture: Tensor, channels: int) -> Tensor:
    """Changes the channels, [B, H, W, C] -> [B, H, W, channels]: what is missing is opaque white,
    what is too much falls away.
    """
    missing = channels - picture.shape[-1]
    if missing <= 0:
        return picture[..., :channels]
    return torch.cat([picture, picture.new_ones(*picture.shape[:-1], missing)], dim=-1)


def same_channels(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both with the larger number of channels."""
    channels = max(first.shape[-1], second.shape[-1])
    return like_channels(first, channels), like_channels(second, channels)


def cut(batch: Tensor, x: int, y: int, width: int, height: int, what: str) -> Tensor:
    """Cuts the window of [B, H, W, ...], as far as it lies inside. InputError if none does."""
    high, wide = batch.shape[1:3]
    if x >= wide or y >= high:
        raise InputError(f"the window begins at x {x}, y {y}, outside of the {what}, which is {wide}x{high}")
    return batch[:, y : y + height, x : x + width]
