"""Computes a linear layer whose first output half is gated by GELU of the second."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from katz_graph.kernels import geglu as gate
from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.products import linear


def linear_geglu(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns v · GELU(g), where v and g are the halves of x · weightᵀ + bias; x [..., K], weight
    [2N, K], bias [2N]; exact GELU (erf).

    In half precision uses one kernel where that is faster on the device: it computes both halves
    from one tile of x, gates them in float32 and rounds once, so the 2N columns are never written.
    Otherwise uses the library's product and the `geglu` kernel. float32 uses the library's product,
    because no other exact product is fast.
    """
    if x.element_size() == 2 and x.numel() and uses_kernels(x):
        width, inner = weight.shape[0] // 2, weight.shape[1]
        if chosen := tiles("linear_geglu", x.device, x.numel() // inner, width, inner):
            from katz_graph.kernels.triton.linear_geglu import linear_geglu as kernel

            return kernel(x, weight, bias, chosen)
    return gate.geglu(linear(x, weight, bias))


def reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return gate.reference(F.linear(x, weight, bias))
