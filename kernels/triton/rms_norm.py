"""The kernel of `rms_norm`, `residual_rms_norm` and `rms_norm_residual`: one program per row, held
in registers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles


@triton.jit
def _rms_norm(
    x,
    inner,
    gate,
    residual,
    weight,
    scale,
    total,
    out,
    width,
    rows,
    eps,
    INNER: tl.constexpr,
    GATED: tl.constexpr,
    ADDED: tl.constexpr,
    NORMALISED: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    row, picture = number * width, (number // rows) * width
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row + column, inside, other=0.0)
    dtype: tl.constexpr = value.dtype
    if INNER:
        value = _normalised(value, inner, column, inside, width, eps)
    if GATED:
        factor = tl.load(gate + picture + column, inside, other=0.0)
        value = (factor.to(tl.float32) * value.to(tl.float32)).to(dtype)
    if ADDED:
        other = tl.load(residual + row + column, inside, other=0.0)
        value = (other.to(tl.float32) + value.to(tl.float32)).to(dtype)
        tl.store(total + row + column, value, inside)
    if NORMALISED:
        value = _normalised(value, weight, column, inside, width, eps)
        if SCALED:
            factor = tl.load(scale + picture + column, inside, other=0.0)
            value = (value.to(tl.float32) * factor.to(tl.float32)).to(dtype)
        tl.store(out + row + column, value, inside)


@triton.jit
def _normalised(value, weight, column, inside, width, eps):
    exact = value.to(tl.float32)
    mean = tl.sum(exact * exact, 0) / width
    rounded = (exact * tl.rsqrt(mean + eps)).to(value.dtype)
    factor = tl.load(weight + column, inside, other=0.0)
    return (rounded.to(tl.float32) * factor.to(tl.float32)).to(value.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, scale: Tensor | None) -> Tensor:
    made: Tensor = _run(x, eps, weight=weight, scale=scale)[1]
    return made


def residual_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    scale: Tensor | None,
    inner: Tensor | None,
    gate: Tensor | None,
) -> tuple[Tensor, Tensor]:
    return _run(x, eps, residual=residual, weight=weight, scale=scale, inner=inner, gate=gate)


def rms_norm_residual(
    x: Tensor, residual: Tensor, inner: Tensor, eps: float, gate: Tensor | None
) -> Tensor:
    total: Tensor = _run(x, eps, residual=residual, inner=inner, gate=gate)[0]
    return total


def _run(
    x: Tensor,
    eps: float,
    residual: Tensor | None = None,
    weight: Tensor | None = None,
    scale: Tensor | None = None,
    inner: Tensor | None = None,
    gate: Tensor | None = None,
) -> tuple[Any, Any]:
    """Returns the sum and the normalised tensor, each None if not computed."""
    x, width = x.contiguous(), x.shape[-1]
    if residual is not None:
        residual = residual.contiguous()
    total = None if residual is None else torch.empty_like(x)
    out = None if weight is None else torch.empty_like(x)
    count, block = x.numel() // width, triton.next_power_of_2(width)
    scale, gate = (
        None if one is None else one.expand(len(x), 1, width).contiguous() for one in (scale, gate)
    )
    _rms_norm[(count,)](
        x,
        inner,
        gate,
        residual,
        weight,
        scale,
        total,
        out,
        width,
        max(1, count // len(x)),
        eps,
        INNER=inner is not None,
        GATED=gate is not None,
        ADDED=residual is not None,
        NORMALISED=weight is not None,
        SCALED=scale is not None,
        BLOCK=block,
        enable_fp_fusion=False,  # torch rounds between its operations
        **tiles("rms_norm", x.device, block),
    )
    return total, out
