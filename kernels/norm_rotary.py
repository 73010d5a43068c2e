"""Normalises the heads of queries or keys and rotates them by their positions, in one pass over
memory.

Stands in for the norm and rotary embedding of attention in transformers' Qwen3 and diffusers'
Z-Image and HunyuanDiT. The kernel rounds where torch rounds: the norm as its module does, products
with the positions in the dtype of their tables. Its sums have another order than torch's, so
results are bit-equal where the sums are exact; otherwise the error is that of torch's float32 sums.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.kernels import rms_norm
from katz_graph.kernels.dispatch import uses_kernels


def norm_rotary(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    cosine: Tensor,
    sine: Tensor,
    adjacent: bool,
) -> Tensor:
    """Returns x [B, S, H, D] normalised over D and rotated in pairs; a kernel overwrites x.

    With a bias the norm is LayerNorm, without one `rms_norm`. `cosine`, `sine` [1 or B, S, D / 2]
    are the positions of pairs. A pair is two adjacent values, or one value of each half of D. Rows
    of x may have gaps, as parts of one product.
    """
    if weight.dtype == x.dtype and uses_kernels(x):
        from katz_graph.kernels.triton.norm_rotary import norm_rotary as kernel

        return kernel(x, weight, bias, eps, cosine, sine, adjacent)
    return reference(x, weight, bias, eps, cosine, sine, adjacent)


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    cosine: Tensor,
    sine: Tensor,
    adjacent: bool,
) -> Tensor:
    if bias is None:
        normalised = rms_norm.reference(x, weight, eps)
    else:
        normalised = F.layer_norm(x, x.shape[-1:], weight, bias, eps)
    one, other = (
        normalised.view(*x.shape[:-1], -1, 2).unbind(-1)
        if adjacent
        else normalised.chunk(2, dim=-1)
    )
    cosine, sine = cosine[:, :, None], sine[:, :, None]
    one, other = (part.to(cosine.dtype) for part in (one, other))
    turned = one * cosine - other * sine, other * cosine + one * sine
    whole = torch.stack(turned, dim=-1).flatten(-2) if adjacent else torch.cat(turned, dim=-1)
    return whole.to(x.dtype)
