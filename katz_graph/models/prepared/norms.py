"""Computes norms with our kernels, see `prepare`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from katz_graph.kernels.group_norm_silu import group_norm_silu
from katz_graph.kernels.layer_norm import residual_layer_norm


class PreparedGroupNorm(nn.GroupNorm):
    """Normalises features [B, C, H, W] by group; uses torch for other shapes."""

    @staticmethod
    def unsupported(norm: Any) -> str:
        return "" if norm.affine else "no weights"

    def forward(self, input: Tensor) -> Tensor:
        return group_norm(self, input, silu=False) if input.ndim == 4 else super().forward(input)


def group_norm(
    norm: nn.GroupNorm, x: Tensor, shift: Tensor | None = None, silu: bool = True
) -> Tensor:
    if shift is not None:
        shift = shift.expand(len(x), -1)
    return group_norm_silu(x, norm.num_groups, norm.weight, norm.bias, norm.eps, shift, silu)


def residual_norm(norm: nn.LayerNorm, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the sum and the normalised sum."""
    return residual_layer_norm(x, residual, norm.weight, norm.bias, norm.eps)
