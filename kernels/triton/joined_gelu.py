"""The kernel of `joined_gelu`: one program per token and block of columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles


@triton.jit
def _joined_gelu(
    first, x, out, tokens, before, width, batch_stride, token_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    copied = column < before
    inside = column < before + width
    own = tl.load(first + row * before + column, copied)
    place = (row // tokens) * batch_stride + (row % tokens) * token_stride + column - before
    exact = tl.load(x + place, inside & (column >= before)).to(tl.float32)
    # 0.797... is sqrt(2 / pi)
    inner = 0.7978845608028654 * (exact + 0.044715 * exact * exact * exact)
    gelu = exact * tl.sigmoid(2.0 * inner)
    made = tl.where(copied, own.to(tl.float32), gelu)
    tl.store(out + row * (before + width) + column, made, inside)


def joined_gelu(first: Tensor, x: Tensor) -> Tensor:
    first = first.contiguous()
    batch, tokens, before = first.shape
    width = x.shape[-1]
    out = torch.empty((batch, tokens, before + width), dtype=x.dtype, device=x.device)
    cut = tiles("joined_gelu", x.device, before + width)
    _joined_gelu[(batch * tokens, triton.cdiv(before + width, cut["BLOCK"]))](
        first, x, out, tokens, before, width, x.stride(0), x.stride(1), **cut
    )
    return out
