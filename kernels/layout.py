"""Determines the memory layout of features [B, C, H, W]: channels-last or NCHW."""

from __future__ import annotations

import torch
from torch import Tensor


def dense(x: Tensor) -> Tensor:
    """Returns x itself if it is channels-last or NCHW, otherwise a copy in NCHW."""
    return x if _is_channels_last(x) else x.contiguous()


def inner(x: Tensor) -> int:
    """Returns the number of adjacent values of one channel in a dense x."""
    return 1 if _is_channels_last(x) else x.shape[2] * x.shape[3]


def in_layout_of(x: Tensor, other: Tensor) -> Tensor:
    """Returns `other` in the layout of x, which is dense."""
    if _is_channels_last(x):
        return other.contiguous(memory_format=torch.channels_last)
    return other.contiguous()


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)
