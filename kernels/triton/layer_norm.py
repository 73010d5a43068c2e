"""The kernel of `residual_layer_norm`: one program per row, held in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles


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
    WEIGHTED: tl.constexpr,
    BIASED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    one = tl.load(x + row + column, inside, other=0.0)
    other = tl.load(residual + row + column, inside, other=0.0)
    rounded = (one.to(tl.float32) + other.to(tl.float32)).to(one.dtype)
    tl.store(total + row + column, rounded, inside)
    exact = rounded.to(tl.float32)
    mean = tl.sum(exact, 0) / width
    apart = tl.where(inside, exact - mean, 0.0)
    normalised = apart / tl.sqrt(tl.sum(apart * apart, 0) / width + eps)
    if WEIGHTED:
        normalised *= tl.load(weight + column, inside).to(tl.float32)
    if BIASED:
        normalised += tl.load(bias + column, inside).to(tl.float32)
    tl.store(out + row + column, normalised, inside)


def residual_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    x, residual, width = x.contiguous(), residual.contiguous(), x.shape[-1]
    total, out, block = torch.empty_like(x), torch.empty_like(x), triton.next_power_of_2(width)
    _layer_norm[(x.numel() // width,)](
        x,
        residual,
        weight,
        bias,
        total,
        out,
        width,
        eps,
        WEIGHTED=weight is not None,
        BIASED=bias is not None,
        BLOCK=block,
        **tiles("residual_layer_norm", x.device, block),
    )
    return total, out
