"""Adds low-rank products to some rows of a layer's output, each with the factors of its request.

Stands in for merging a LoRA into the layer's weight. A row differs from that by rounding only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowFactors:
    """Holds the factors of adjacent rows: down [r, K] or [r, C, kh, kw], up [N, r]."""

    rows: slice
    down: Tensor
    up: Tensor


@dataclass(frozen=True, slots=True)
class FactorBank:
    """Holds factors of equal rank for kernels, which read from device memory which set applies to a
    row: down [M, r, K] or [M, r, C, kh, kw], up [M, N, r], members [B] int32.
    """

    down: Tensor
    up: Tensor
    members: Tensor


Factors = Sequence[RowFactors] | FactorBank


def add_products(y: Tensor, x: Tensor, factors: Factors) -> None:
    """Adds x[b] · downᵀ · upᵀ with the factors of each row b. x: [B, ..., K]; y: [B, ..., N],
    contiguous.

    A bank takes two launches: the second reads the inner products from the cache.
    """
    if isinstance(factors, FactorBank):
        from katz_graph.kernels.triton.row_products import add_products as kernel

        return kernel(y, x, factors.down, factors.up, factors.members)
    for one in factors:
        inner = F.linear(x[one.rows].flatten(0, -2), one.down)
        rows = y[one.rows]
        rows.view(-1, rows.shape[-1]).addmm_(inner, one.up.t())


def add_convolutions(
    y: Tensor,
    x: Tensor,
    factors: Factors,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
) -> None:
    """Adds the convolution of x[b] by `down`, combined by `up`, with the factors of each row b. x:
    [B, C, H, W], y: [B, N, H', W'].
    """
    if isinstance(factors, FactorBank):
        batch, channels, height, width = x.shape
        down = factors.down[factors.members].flatten(0, 1)
        apart = x.reshape(1, batch * channels, height, width)
        inner = F.conv2d(apart, down, None, stride, padding, dilation, groups=batch)
        product = torch.bmm(factors.up[factors.members], inner.view(batch, factors.up.shape[2], -1))
        y.add_(product.view(y.shape))
        return
    for one in factors:
        inner = F.conv2d(x[one.rows], one.down, None, stride, padding, dilation)
        y[one.rows].add_(F.conv2d(inner, one.up[:, :, None, None]))
