"""The kernel of `linear_geglu`: one program per output tile. It multiplies a tile of x with two
tiles of the weight, N rows apart, and multiplies the first product by GELU of the second.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import Tiles
from katz_graph.kernels.dispatch import INTERPRETED


@triton.jit
def _linear_geglu(
    x,
    weight,
    bias,
    out,
    rows,
    width,
    inner,
    BIASED: tl.constexpr,
    UPCAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    index = tl.arange(0, INNER)
    # out-of-range rows and columns wrap around to valid ones; their results are not written
    x += (row % rows).to(tl.int64)[:, None] * inner + index[None, :]
    weight += (column % width).to(tl.int64)[None, :] * inner + index[:, None]
    value = tl.zeros([ROWS, COLUMNS], tl.float32)
    gate = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, inner, INNER):
        inside = index < inner - start
        one = tl.load(x + start, inside[None, :], other=0.0)
        first = tl.load(weight + start, inside[:, None], other=0.0)
        second = tl.load(weight + width.to(tl.int64) * inner + start, inside[:, None], other=0.0)
        if UPCAST:  # Triton's interpreter cannot multiply bfloat16
            one, first = one.to(tl.float32), first.to(tl.float32)
            second = second.to(tl.float32)
        value = tl.dot(one, first, value)
        gate = tl.dot(one, second, gate)
    if BIASED:
        value += tl.load(bias + column % width).to(tl.float32)[None, :]
        gate += tl.load(bias + width + column % width).to(tl.float32)[None, :]
    # 0.707... is 1 / sqrt(2)
    exact = value * (0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476)))
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(out + place, exact, (row < rows)[:, None] & (column < width)[None, :])


def linear_geglu(x: Tensor, weight: Tensor, bias: Tensor | None, tiles: Tiles) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    width, inner = weight.shape[0] // 2, weight.shape[1]
    rows = x.numel() // inner
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    # consecutive programs take adjacent rows of x, which read the same tiles of the weight
    grid = triton.cdiv(rows, tiles["ROWS"]), triton.cdiv(width, tiles["COLUMNS"])
    _linear_geglu[grid](
        x,
        weight,
        bias,
        out,
        rows,
        width,
        inner,
        BIASED=bias is not None,
        UPCAST=INTERPRETED,
        **tiles,
    )
    return out
