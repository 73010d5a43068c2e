"""The kernels of `residual_layer_norm`, `shifted_layer_norm` and `joined_layer_norm`: one program
per row, held in registers.

SDXL's rows are 1,280 and 640 wide. With a residual, 2,048 rows of 1,280 are 21 MB in 16 bits, most
of them in a Hopper's cache, so the time is that of waiting rather than of bandwidth. With two warps
a multiprocessor has room for 16 programs: 132 of them run all 2,048 rows at once. With four warps
it has room for 12, and the rows take two rounds. A row of 640 has one warp, whose sums need no
barrier.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.triton.rounding import rounded


@triton.jit
def _normalised(
    value,
    weight,
    bias,
    column,
    inside,
    width,
    eps,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
):
    """Returns LayerNorm of a row in float32."""
    exact = value.to(tl.float32)
    mean = tl.sum(exact, 0) / width
    apart = tl.where(inside, exact - mean, 0.0)
    normalised = apart / tl.sqrt(tl.sum(apart * apart, 0) / width + eps)
    if WEIGHTED:
        normalised *= tl.load(weight + column, inside).to(tl.float32)
    if BIASED:
        normalised += tl.load(bias + column, inside).to(tl.float32)
    return normalised


@triton.jit
def _layer_norm(
    x,
    residual,
    weight,
    bias,
    total,
    out,
    width,
    eps,
    ADDED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row + column, inside, other=0.0)
    if ADDED:
        other = tl.load(residual + row + column, inside, other=0.0)
        value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
        tl.store(total + row + column, value, inside)
    normalised = _normalised(value, weight, bias, column, inside, width, eps, WEIGHTED, BIASED)
    tl.store(out + row + column, normalised, inside)


def residual_layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    x, width = x.contiguous(), x.shape[-1]
    residual = None if residual is None else residual.contiguous()
    total = x if residual is None else torch.empty_like(x)
    out, block = torch.empty_like(x), triton.next_power_of_2(width)
    _layer_norm[(x.numel() // width,)](
        x,
        residual,
        weight,
        bias,
        total,
        out,
        width,
        eps,
        ADDED=residual is not None,
        WEIGHTED=weight is not None,
        BIASED=bias is not None,
        BLOCK=block,
        **tiles("residual_layer_norm", x.device, block),
    )
    return total, out


@triton.jit
def _shifted_or_joined_norm(
    x,
    other,
    weight,
    bias,
    shift,
    out,
    width,
    rows,
    eps,
    JOINED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    SHIFTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`width`: values of a row of `out`. `rows`: of one picture."""
    number = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    if JOINED:
        half = width // 2
        first = column < half
        value = tl.load(x + number * half + column, first, other=0.0)
        more = tl.load(other + number * half + column - half, inside & (column >= half), other=0.0)
        value = tl.where(first, value, more)
    else:
        value = tl.load(x + number * width + column, inside, other=0.0)
    normalised = _normalised(value, weight, bias, column, inside, width, eps, WEIGHTED, BIASED)
    if SHIFTED:
        # rounded, because the library adds the shift to the norm's output
        added = tl.load(shift + (number // rows) * width + column, inside, other=0.0)
        normalised = rounded(normalised, value.dtype) + added.to(tl.float32)
    tl.store(out + number * width + column, normalised, inside)


def shifted_layer_norm(
    x: Tensor, shift: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    x = x.contiguous()
    return _launched(x, None, torch.empty_like(x), weight, bias, eps, shift.contiguous())


def joined_layer_norm(
    x: Tensor, other: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    out = torch.empty((*x.shape[:-1], 2 * x.shape[-1]), dtype=x.dtype, device=x.device)
    return _launched(x.contiguous(), other.contiguous(), out, weight, bias, eps, None)


def _launched(
    x: Tensor,
    other: Tensor | None,
    out: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    shift: Tensor | None,
) -> Tensor:
    width, count = out.shape[-1], out.numel() // out.shape[-1]
    block = triton.next_power_of_2(width)
    _shifted_or_joined_norm[(count,)](
        x,
        other,
        weight,
        bias,
        shift,
        out,
        width,
        max(1, count // len(x)),
        eps,
        JOINED=other is not None,
        WEIGHTED=weight is not None,
        BIASED=bias is not None,
        SHIFTED=shift is not None,
        BLOCK=block,
        **tiles("residual_layer_norm", x.device, block),
    )
    return out
