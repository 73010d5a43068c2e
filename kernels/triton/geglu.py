"""The kernel of `geglu`: one program per block of rows and columns.

The bytes bound it: 2·M·N read and M·N written, 63 MB at SDXL's [2, 32·32, 2·5120] in 16 bits and
126 MB at [2, 64·64, 2·2560], of which a Hopper's cache holds 50 MB. At the 3 TB/s of an H100's
copies these 60 and 10 gates take 1.7 ms a step. So that nothing else bounds it:

- Its arithmetic takes less than its bytes. The library's erf is 40 instructions per element with
  the rest of the gate, which alone is two thirds of that time; the 16-bit formats use 26.
- Input is read once and is not needed again, so it leaves the cache first. The output stays for the
  product that follows.

float32 follows torch's operations. In 16-bit formats GELU of x > -4 is within one unit in the last
place of the exact value (torch's within six), so results may differ from torch's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles


@triton.jit
def gelu(x):
    """Returns GELU of float32 values that are rounded to 16 bits afterwards.

    For t = 1 / (1 + p |x| / √2) the tail Φ(-|x|) is half of a polynomial in t times exp(-x²/2)
    (Abramowitz and Stegun 7.1.26; erf is exact to 1.5e-7), and GELU(x) = max(x, 0) - |x| Φ(-|x|).
    Nothing is subtracted from 1, so a small result of a negative x keeps its digits. An infinite x
    gives NaN.
    """
    size = tl.abs(x)
    t = 1.0 / (1.0 + 0.23164189298711686 * size)  # p / √2 with p = 0.3275911
    tail = 0.5307027145 * t - 0.7265760135
    tail = tail * t + 0.7107068705
    tail = tail * t - 0.142248368
    tail = tail * t + 0.127414796
    tail *= t * tl.exp2(size * size * -0.7213475204444817)  # 1 / (2 ln 2)
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) - size * tail


@triton.jit
def _geglu(x, out, rows, width, SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    places = row[:, None].to(tl.int64) * width + column[None, :]
    both = x + places + row[:, None].to(tl.int64) * width
    value = tl.load(both, inside, eviction_policy="evict_first").to(tl.float32)
    gate = tl.load(both + width, inside, other=0.0, eviction_policy="evict_first")
    exact = gate.to(tl.float32)
    # 0.707... is 1 / sqrt(2)
    gated = gelu(exact) if SHORT else 0.5 * exact * (1.0 + tl.erf(exact * 0.7071067811865476))
    gated = gated.to(gate.dtype)  # rounded, because the library rounds GELU's output
    tl.store(out + places, value * gated.to(tl.float32), inside)


def geglu(x: Tensor) -> Tensor:
    x, width = x.contiguous(), x.shape[-1] // 2
    rows = x.numel() // (2 * width)
    out = torch.empty((*x.shape[:-1], width), dtype=x.dtype, device=x.device)
    cut = tiles("geglu", x.device, width)
    grid = triton.cdiv(rows, cut["ROWS"]), triton.cdiv(width, cut["BLOCK"])
    _geglu[grid](x, out, rows, width, SHORT=x.element_size() == 2, **cut)
    return out
