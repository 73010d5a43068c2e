"""Normalises rows by mean and variance, with a residual added or two rows joined before, or a shift
after, in one pass over memory.

Stands in for a sum and torch's LayerNorm, and for diffusers' `AdaLayerNormShift` and
`FP32LayerNorm` of joined tensors in HunyuanDiT. Sum and shift are bit-equal to torch's. Sums of a
row have another order than torch's, so the statistics are not: the error against float64 is no
larger than torch's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels


def residual_layer_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Returns r = x + residual, rounded to their dtype, and LayerNorm(r); all [..., C]. Without a
    residual r is x itself.

    Statistics are float32. Reads both inputs once and writes both outputs once; torch reads the sum
    again.
    """
    if uses_kernels(x):
        from katz_graph.kernels.triton.layer_norm import residual_layer_norm as kernel

        return kernel(x, residual, weight, bias, eps)
    return residual_reference(x, residual, weight, bias, eps)


def shifted_layer_norm(
    x: Tensor, shift: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Returns LayerNorm(x) + shift, for x [B, N, C] and shift [B, C].

    Statistics are float32. Reads x once and writes once; torch does so twice.
    """
    if uses_kernels(x):
        from katz_graph.kernels.triton.layer_norm import shifted_layer_norm as kernel

        return kernel(x, shift, weight, bias, eps)
    return shifted_reference(x, shift, weight, bias, eps)


def joined_layer_norm(
    x: Tensor, other: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Returns LayerNorm of x and `other` [B, N, C] joined to rows of 2 · C.

    Statistics are float32. Reads both once and writes once; torch also writes and reads the rows.
    """
    if uses_kernels(x):
        from katz_graph.kernels.triton.layer_norm import joined_layer_norm as kernel

        return kernel(x, other, weight, bias, eps)
    return joined_reference(x, other, weight, bias, eps)


def residual_reference(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    total = x if residual is None else x + residual
    return total, F.layer_norm(total, total.shape[-1:], weight, bias, eps)


def shifted_reference(
    x: Tensor, shift: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps) + shift[:, None]


def joined_reference(
    x: Tensor, other: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    rows = torch.cat([x, other], dim=-1)
    return F.layer_norm(rows, rows.shape[-1:], weight, bias, eps)
