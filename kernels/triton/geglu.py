"""The kernel of `geglu`: one program per row and block of columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles


@triton.jit
def _geglu(x, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + 2 * row * width + column, inside).to(tl.float32)
    gate = tl.load(x + 2 * row * width + width + column, inside)
    exact = gate.to(tl.float32)
    # 0.707... is 1 / sqrt(2); rounded, because the library rounds GELU's output
    gelu = (0.5 * exact * (1.0 + tl.erf(exact * 0.7071067811865476))).to(gate.dtype)
    tl.store(out + row * width + column, value * gelu.to(tl.float32), inside)


def geglu(x: Tensor) -> Tensor:
    x, width = x.contiguous(), x.shape[-1] // 2
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    cut = tiles("geglu", x.device, width)
    grid = x.numel() // (2 * width), triton.cdiv(width, cut["BLOCK"])
    _geglu[grid](x, out, width, **cut)
    return out
