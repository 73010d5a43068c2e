"""Widens weights that are stored as 8-bit numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK_VALUES = 2**18
"""Values widened at a time: a block's intermediate results stay in a CPU's cache."""


def widened(
    codes: Tensor, scales: Tensor | None, group: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """Returns stored numbers [N, ...] times the scales of their rows [N], rotated back. Rounds the
    float32 product once, to `dtype`. `scales`: None if the numbers are the values. `group`: inputs
    that are rotated together, 0 without a rotation. `out`: the result's memory.

    The rotation (ConvRot, as in comfy-kitchen 0.2.40) precedes the scale and works on whole
    numbers. Its sums are exact, so the result does not depend on order or device. comfy-kitchen
    scales first, so that its sums are rounded; without a rotation, float32 results are bit-equal.
    Takes memory for the result and one block of rows.
    """
    made = torch.empty_like(codes, dtype=dtype) if out is None else out
    if scales is None:
        return made.copy_(codes)
    rows = scales.view(-1, *(1,) * (codes.ndim - 1))
    at_once = max(1, BLOCK_VALUES // max(1, math.prod(codes.shape[1:])))
    for first in range(0, len(codes), at_once):
        block = slice(first, first + at_once)
        values = rotated(codes[block], group) if group else codes[block].float()
        made[block] = values.mul_(rows[block])
    return made


def rotated(codes: Tensor, group: int) -> Tensor:
    """Returns int8 numbers [N, K], each group of inputs times the Hadamard matrix, as float32. The
    result is exact.
    """
    groups, signs = codes.reshape(-1, group), hadamard_signs(group, codes.device)
    if codes.device.type == "cpu":  # faster than a product in float32
        sums = torch._int_mm(groups, signs).float()
    else:
        sums = groups.float() @ signs.float()
    return sums.mul_(group**-0.5).view(codes.shape)


def hadamard_signs(size: int, device: torch.device) -> Tensor:
    """Returns the regular Hadamard matrix [size, size] int8 for a power of four: the Kronecker
    power of the matrix with -1 where row and column add up to 3, else 1. Divided by the root of its
    size it is orthogonal, and its own inverse.
    """
    numbers = torch.arange(size, dtype=torch.int16, device=device)
    differing = numbers[:, None] ^ numbers
    pairs = differing & (differing >> 1) & 0x5555  # base-4 digits that add up to 3
    for shift in (8, 4, 2):
        pairs = pairs ^ (pairs >> shift)
    return (1 - 2 * (pairs & 1)).to(torch.int8)
