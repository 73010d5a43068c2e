"""Normalises rows with a modulation, after the gated residuals that come first, in one pass over
memory.

Stands in for the norms of transformer blocks in diffusers (`AdaLayerNormZero`, `norm2` and their
modulations) and for their gated residuals. Follows torch's operations in their order and rounds
where torch rounds. Gates, sums and modulations are bit-equal to torch's. Torch's `layer_norm` sums
a row in another order, so the statistics are not: the error against float64 is no larger than
torch's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels

Gated = tuple[Tensor, Tensor]
"""A gate [B, C] and its values [B, N, C]."""
Modulation = tuple[Tensor, Tensor]
"""A scale [B, C] and a shift [B, C]."""


def modulated_norm(x: Tensor, modulations: Sequence[Modulation], eps: float) -> list[Tensor]:
    """Returns LayerNorm(x) · (1 + scale) + shift for each of one or two modulations; x [B, N, C].

    Statistics are float32. Reads x once and writes each result once; torch reads it three times and
    writes three times.
    """
    return computed(x, (), modulations, eps)[1:]


def gated_residual(residual: Tensor, *terms: Gated) -> Tensor:
    """Returns residual + gate · x + ..., summed in order, for one or two terms; [B, N, C].

    Reads each input once and writes once; torch also writes and reads each product.
    """
    return computed(residual, terms, (), 0.0)[0]


def gated_norm(
    residual: Tensor, terms: Sequence[Gated], modulation: Modulation, eps: float
) -> tuple[Tensor, Tensor]:
    """Returns r = `gated_residual` of one or two terms, and `modulated_norm` of r; both [B, N, C].

    Reads each input once and writes both results once. For one term, torch reads six times and
    writes five times.
    """
    total, normalised = computed(residual, terms, (modulation,), eps)
    return total, normalised


def computed(
    residual: Tensor, terms: Sequence[Gated], modulations: Sequence[Modulation], eps: float
) -> list[Tensor]:
    """Returns r = `gated_residual` of up to two terms, and `modulated_norm` of r for each of up to
    two modulations.
    """
    if uses_kernels(residual):
        from katz_graph.kernels.triton.modulated_norm import gated_norms

        return gated_norms(residual, terms, modulations, eps)
    return reference(residual, terms, modulations, eps)


def reference(
    residual: Tensor, terms: Sequence[Gated], modulations: Sequence[Modulation], eps: float
) -> list[Tensor]:
    total = residual
    for gate, x in terms:
        total = total + gate[:, None] * x
    if not modulations:
        return [total]
    normalised = F.layer_norm(total, total.shape[-1:], None, None, eps)
    return [
        total,
        *(normalised * (1 + scale[:, None]) + shift[:, None] for scale, shift in modulations),
    ]
