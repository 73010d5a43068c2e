"""Applies GELU to the features of a feed-forward behind those of an attention, in one pass over
memory.

Stands in for `act_mlp` and `torch.cat` in diffusers' single blocks of FLUX.1. The copied half is
bit-equal. GELU is x · sigmoid(2y) instead of x · (1 + tanh(y)) / 2, which is the same function: its
error against float64 is no larger than torch's.

Elsewhere torch's `gelu` behind a product is one pass already. A product with GELU in its epilogue
would save it, but would not round in between, as the stock does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels


def joined_gelu(first: Tensor, x: Tensor) -> Tensor:
    """Returns [B, N, C + M]: `first` [B, N, C], then GELU(x) of x [B, N, M] by the tanh
    approximation. x may be part of wider rows. Reads both once and writes once; torch also writes
    and reads GELU(x).
    """
    if uses_kernels(x):
        from katz_graph.kernels.triton.joined_gelu import joined_gelu as kernel

        return kernel(first, x)
    return reference(first, x)


def reference(first: Tensor, x: Tensor) -> Tensor:
    return torch.cat([first, F.gelu(x, approximate="tanh")], dim=2)
