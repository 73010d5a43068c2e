"""Normalises queries and keys by head and rotates them to their positions, in place, in one pass
over memory.

Stands in for `norm_q`, `norm_k` and `apply_rotary_emb` in diffusers' attention of FLUX.1 and Stable
Diffusion 3.5. Follows torch's operations in their order and rounds where torch rounds: bit-equal,
except that torch sums a head's squares in another order. The error against float64 is no larger
than torch's.

One launch computes queries and keys of text and picture, with separate weights, in the joined
product; or one of both, where only some tokens have queries. `norm_rotary` computes one tensor with
one weight: also LayerNorm, halves as pairs, and rounding to the dtype of the positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines [N, D] in float32, by position; each pair of values has equal ones."""


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """Holds the weights [D] of the RMS norms of a head's queries and keys, or of one of both.
    `rounds`: the normalised value is rounded before the weight, as in diffusers' `RMSNorm`, unlike
    in torch's.
    """

    weights: tuple[Tensor, ...]
    eps: float
    rounds: bool

    def one(self, number: int) -> HeadNorm:
        """Returns the norm of the queries (0) or of the keys (1) alone."""
        return replace(self, weights=(self.weights[number],))


def head_norm(
    x: Tensor,
    heads: int,
    first: HeadNorm,
    last: HeadNorm,
    end: int,
    rotary: Rotary | None = None,
    positions: Tensor | None = None,
) -> None:
    """Overwrites queries and keys with their normalised, and if given rotated, values.

    x [B, N, C] with adjacent channels: of all heads for each weight of a norm, such as queries,
    then keys; then others. Tokens before `end` use the norm `first`, others `last`, equal except
    for their weights. A token's position is its number, or for the tokens from `end` on `end` plus
    that of `positions` [B, N - end] int64. Reads and writes queries and keys once; torch does so
    five times with positions, and also writes joined copies.
    """
    if uses_kernels(x):
        from katz_graph.kernels.triton.head_norm import head_norm as kernel

        kernel(
            x,
            heads,
            (first.weights, last.weights),
            end,
            first.eps,
            first.rounds,
            rotary,
            positions,
        )
    else:
        reference(x, heads, first, last, end, rotary, positions)


def reference(
    x: Tensor,
    heads: int,
    first: HeadNorm,
    last: HeadNorm,
    end: int,
    rotary: Rotary | None = None,
    positions: Tensor | None = None,
) -> None:
    width = len(first.weights[0])
    for part, norm, places in (
        (x[:, :end], first, slice(None, end)),
        (x[:, end:], last, slice(end, None) if positions is None else positions + end),
    ):
        for number, weight in enumerate(norm.weights):
            place = number * heads * width
            found = part[..., place : place + heads * width]
            values = _normalised(torch.unflatten(found, -1, (heads, width)), weight, norm)
            if rotary is not None:
                cosines, sines = (one[places].unsqueeze(-2) for one in rotary)
                values = _rotated(values, cosines, sines)
            found.copy_(values.flatten(2))


def _normalised(x: Tensor, weight: Tensor, norm: HeadNorm) -> Tensor:
    if not norm.rounds:
        return F.rms_norm(x, weight.shape, weight, norm.eps)
    square = x.float().pow(2).mean(-1, keepdim=True)
    return (x * torch.rsqrt(square + norm.eps)).to(weight.dtype) * weight


def _rotated(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    real, imaginary = torch.unflatten(x, -1, (-1, 2)).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(-2)
    return (x.float() * cosines + turned.float() * sines).to(x.dtype)
