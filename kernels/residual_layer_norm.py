"""Adds a residual, if there is one, and normalises the sum, in one pass over memory."""

from __future__ import annotations

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
    return reference(x, residual, weight, bias, eps)


def reference(
    x: Tensor, residual: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    total = x if residual is None else x + residual
    return total, F.layer_norm(total, total.shape[-1:], weight, bias, eps)
