"""Widens weights that are stored as 8-bit numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels

BLOCK_VALUES = 2**18
"""Values that a CPU widens at a time, few enough for its cache."""
DEVICE_BLOCK_VALUES = 2**22
"""Values that another device widens at a time, if no kernel does."""
SECOND_BIT = 1 << 14  # of an int16, which a shifted sign leaves set
NAN = 0x7F  # of e4m3, without its sign
MIN_GROUP = 16  # inputs that a kernel rotates together


def widened(
    codes: Tensor, scales: Tensor | None, group: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """Returns stored numbers [N, ...] times the scales of their rows [N], rotated back. Rounds the
    float32 product once, to `dtype`. `scales`: None if the numbers are the values. `group`: inputs
    that are rotated together, 0 without a rotation. `out`: the result's memory.

    The rotation (ConvRot, as in comfy-kitchen 0.2.40) precedes the scale and works on whole
    numbers. Its sums are exact, so the result does not depend on order or device. comfy-kitchen
    scales first, so that its sums are rounded; without a rotation, float32 results are bit-equal.
    Takes memory for the result and, without a kernel, for one block of rows.
    """
    made = torch.empty_like(codes, dtype=dtype) if out is None else out
    if (
        uses_kernels(codes)
        and (group == 0 or group >= MIN_GROUP)
        and made.stride() == codes.stride()
    ):
        from katz_graph.kernels.triton.widening import widened as kernel

        return kernel(codes, scales, group, made)
    return reference(codes, scales, group, made)


def reference(codes: Tensor, scales: Tensor | None, group: int, made: Tensor) -> Tensor:
    """Writes to `made` with torch."""
    rows = None if scales is None else scales.view(-1, *(1,) * (codes.ndim - 1))
    most = BLOCK_VALUES if codes.device.type == "cpu" else DEVICE_BLOCK_VALUES
    at_once = max(1, most // max(1, math.prod(codes.shape[1:])))
    for first in range(0, len(codes), at_once):
        block = slice(first, first + at_once)
        values = rotated(codes[block], group) if group else decoded(codes[block])
        made[block] = values if rows is None else values.mul_(rows[block])
    return made


def decoded(codes: Tensor) -> Tensor:
    """Returns stored numbers as float32. Exact."""
    if codes.dtype != torch.float8_e4m3fn or codes.device.type != "cpu":
        return codes.float()
    # torch converts e4m3 ten times more slowly than float16, which has an exponent 8 larger
    bits = codes.view(torch.int8)
    moved = bits.to(torch.int16).bitwise_left_shift_(7).bitwise_and_(~SECOND_BIT)
    values = moved.view(torch.float16).float().mul_(256.0)
    return values.masked_fill_(bits.bitwise_and(NAN) == NAN, math.nan)


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
