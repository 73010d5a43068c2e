"""Doubles a tensor with a minimal kernel, to test whether Triton works."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _double(x, y, size, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    tl.store(y + place, 2 * tl.load(x + place, inside), inside)


def probe(x: Tensor) -> Tensor:
    """Returns twice a contiguous tensor."""
    y = torch.empty_like(x)
    _double[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
