"""Normalises rows by their root mean square, alone or after a residual, in one pass over memory.

Stands in for transformers' T5LayerNorm, MT5LayerNorm and Qwen3RMSNorm and for diffusers' RMSNorm,
which round in one order: the normalised row is rounded to its dtype, then multiplied by the weight.
The kernel rounds where torch rounds. Its sum of squares has another order than torch's, so results
are bit-equal where that sum is exact; otherwise the error is that of torch's float32 sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float, scale: Tensor | None = None) -> Tensor:
    """Returns x / sqrt(mean(x²) + eps) · weight · scale, for x [B, ..., C]; weight [C], scale
    [B, 1, C].

    The mean is float32. Reads x once; torch reads it twice and writes four intermediate tensors.
    """
    if _same_dtype(x, weight, scale) and uses_kernels(x):
        from katz_graph.kernels.triton.rms_norm import rms_norm as kernel

        return kernel(x, weight, eps, scale)
    return reference(x, weight, eps, scale)


def residual_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    scale: Tensor | None = None,
    inner: Tensor | None = None,
    gate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns r = residual + x and `rms_norm` of r; x and residual [B, ..., C].

    `inner` [C]: x is first normalised with this weight. `gate` [B, 1, C]: multiplies x before the
    sum. Reads both inputs once and writes both outputs once.
    """
    if _same_dtype(x, residual, weight, scale, inner, gate) and uses_kernels(x):
        from katz_graph.kernels.triton.rms_norm import residual_rms_norm as kernel

        return kernel(x, residual, weight, eps, scale, inner, gate)
    return residual_norm_reference(x, residual, weight, eps, scale, inner, gate)


def rms_norm_residual(
    x: Tensor, residual: Tensor, inner: Tensor, eps: float, gate: Tensor | None = None
) -> Tensor:
    """Returns residual + gate · `rms_norm` of x with the weight `inner`, as `residual_rms_norm`."""
    if _same_dtype(x, residual, inner, gate) and uses_kernels(x):
        from katz_graph.kernels.triton.rms_norm import rms_norm_residual as kernel

        return kernel(x, residual, inner, eps, gate)
    return residual_reference(x, residual, eps, inner, gate)


def reference(x: Tensor, weight: Tensor, eps: float, scale: Tensor | None = None) -> Tensor:
    exact = x if x.dtype == torch.float64 else x.float()
    variance = exact.pow(2).mean(-1, keepdim=True)
    normalised = (x * torch.rsqrt(variance + eps)).to(x.dtype) * weight
    return normalised if scale is None else normalised * scale


def residual_norm_reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    scale: Tensor | None = None,
    inner: Tensor | None = None,
    gate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    total = residual_reference(x, residual, eps, inner, gate)
    return total, reference(total, weight, eps, scale)


def residual_reference(
    x: Tensor,
    residual: Tensor,
    eps: float,
    inner: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor:
    branch = x if inner is None else reference(x, inner, eps)
    return residual + (branch if gate is None else gate * branch)


def _same_dtype(x: Tensor, *others: Tensor | None) -> bool:
    return all(one is None or one.dtype == x.dtype for one in others)
