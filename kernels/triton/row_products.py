"""The kernels of `row_products`: x · downᵀ of each row's factors, then the sum y + inner · upᵀ.

One program computes a block of tokens of one row, all ranks; in the second kernel a block of
columns. Ranks are powers of two of at least 16; factors of lower rank end with zeros.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.dispatch import INTERPRETED

TOKENS, COLUMNS, INNER = 32, 64, 64


@triton.jit
def _inner(
    x,
    down,
    members,
    out,
    tokens,
    width,
    UPCAST: tl.constexpr,
    RANK: tl.constexpr,
    TOKENS: tl.constexpr,
    INNER: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    rank, column = tl.arange(0, RANK), tl.arange(0, INNER)
    member = tl.load(members + row).to(tl.int64)
    here = row * tokens + token
    total = tl.zeros((TOKENS, RANK), tl.float32)
    for start in range(0, width, INNER):
        inside = column + start < width
        part = tl.load(
            x + here[:, None] * width + (start + column)[None, :],
            (token < tokens)[:, None] & inside[None, :],
            other=0.0,
        )
        factor = tl.load(
            down + (member * RANK + rank)[None, :] * width + (start + column)[:, None],
            inside[:, None],
            other=0.0,
        )
        if UPCAST:  # Triton's interpreter cannot multiply bfloat16
            part, factor = part.to(tl.float32), factor.to(tl.float32)
        total = tl.dot(part, factor, total, input_precision="ieee")
    places = out + here[:, None] * RANK + rank[None, :]
    tl.store(places, total.to(out.dtype.element_ty), (token < tokens)[:, None])


@triton.jit
def _outer(
    y,
    inner,
    up,
    members,
    tokens,
    width,
    UPCAST: tl.constexpr,
    RANK: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    rank = tl.arange(0, RANK)
    member = tl.load(members + row).to(tl.int64)
    here = row * tokens + token
    inside = (token < tokens)[:, None] & (column < width)[None, :]
    part = tl.load(
        inner + here[:, None] * RANK + rank[None, :], (token < tokens)[:, None], other=0.0
    )
    factor = tl.load(
        up + (member * width + column)[None, :] * RANK + rank[:, None],
        (column < width)[None, :],
        other=0.0,
    )
    places = y + here[:, None] * width + column[None, :]
    before = tl.load(places, inside, other=0.0).to(tl.float32)
    if UPCAST:
        part, factor = part.to(tl.float32), factor.to(tl.float32)
    total = tl.dot(part, factor, before, input_precision="ieee")
    tl.store(places, total.to(y.dtype.element_ty), inside)


def add_products(y: Tensor, x: Tensor, down: Tensor, up: Tensor, members: Tensor) -> None:
    batch, width, rank = x.shape[0], x.shape[-1], down.shape[1]
    x = x.contiguous()
    tokens, columns = x.numel() // (batch * width), y.shape[-1]
    inner = torch.empty((batch, tokens, rank), dtype=x.dtype, device=x.device)
    blocks = batch, triton.cdiv(tokens, TOKENS)
    options = {"UPCAST": INTERPRETED and x.dtype == torch.bfloat16, "RANK": rank, "TOKENS": TOKENS}
    _inner[blocks](x, down, members, inner, tokens, width, INNER=INNER, **options)
    grid = *blocks, triton.cdiv(columns, COLUMNS)
    _outer[grid](y, inner, up, members, tokens, columns, COLUMNS=COLUMNS, **options)
