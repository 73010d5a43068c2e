"""The kernel of `widened`: one program per block of rows and columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 32, 128  # values of a program, without a rotation
TURNED_ROWS, TURNED_COLUMNS = 64, 64  # with one
INTEGERS, E4M3, E5M2 = 0, 1, 2
KINDS = {torch.int8: INTEGERS, torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}


@triton.jit
def _decoded(codes, KIND: tl.constexpr):
    """Returns stored numbers as float16, which holds all of them. Architectures before sm89 have no
    floats of 8 bits, so these are taken apart as integers.
    """
    if KIND == 0:
        return codes.to(tl.float16)
    bits = codes.to(tl.int16) & 0xFF
    if KIND == 2:  # the upper byte of a float16
        return (bits << 8).to(tl.float16, bitcast=True)
    # exponent 8 less than that of a float16
    moved = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    value = moved.to(tl.float16, bitcast=True) * 256.0
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), value).to(tl.float16)


@triton.jit
def _parity(x):
    """Returns whether an odd number of base-4 digits of x below 256 are 3."""
    pairs = x & (x >> 1) & 0x55
    pairs = pairs ^ (pairs >> 4)
    pairs = pairs ^ (pairs >> 2)
    return pairs & 1


@triton.jit
def _widened(
    codes,
    scales,
    out,
    rows,
    columns,
    KIND: tl.constexpr,
    SCALED: tl.constexpr,
    GROUP: tl.constexpr,
    FACTOR: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    if GROUP:
        # columns of one group
        first = (tl.program_id(1) * BLOCK) // GROUP * GROUP
        total = tl.zeros((BLOCK_ROWS, BLOCK), tl.float32)
        for start in range(0, GROUP, BLOCK):
            inner = start + tl.arange(0, BLOCK)
            place = row[:, None] * columns + first + inner[None, :]
            values = _decoded(tl.load(codes + place, (row < rows)[:, None], 0), KIND)
            differing = inner[:, None] ^ (column - first)[None, :]
            signs = 1.0 - 2.0 * _parity(differing)
            total = tl.dot(values, signs.to(tl.float16), total)
        total = total * FACTOR
    else:
        place = row[:, None] * columns + column[None, :]
        total = _decoded(tl.load(codes + place, inside, 0), KIND).to(tl.float32)
    if SCALED:
        total = total * tl.load(scales + row, row < rows, 0.0)[:, None]
    place = row[:, None] * columns + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), inside)


def widened(codes: Tensor, scales: Tensor | None, group: int, out: Tensor) -> Tensor:
    """Writes to `out`, of the shape and memory layout of `codes`, in which rows are adjacent."""
    rows, columns = len(codes), codes.numel() // max(1, len(codes))
    if not codes.numel():
        return out
    kind = KINDS[codes.dtype]
    numbers = codes if kind == INTEGERS else codes.view(torch.uint8)
    high, wide = (TURNED_ROWS, min(group, TURNED_COLUMNS)) if group else (ROWS, COLUMNS)
    grid = triton.cdiv(rows, high), triton.cdiv(columns, wide)
    scaled, factor = scales is not None, group**-0.5 if group else 1.0
    _widened[grid](
        numbers,
        scales if scales is not None else numbers,
        out,
        rows,
        columns,
        KIND=kind,
        SCALED=scaled,
        GROUP=group,
        FACTOR=factor,
        BLOCK_ROWS=high,
        BLOCK=wide,
    )
    return out
