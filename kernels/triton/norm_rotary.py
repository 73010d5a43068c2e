"""The kernel of `norm_rotary`: one program per token and group of heads.

A program holds the first and second values of all pairs apart, so that each thread turns its own
pairs and may write in place.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.triton.rounding import rounded


@triton.jit
def _norm_rotary(
    x,
    weight,
    bias,
    cosine,
    sine,
    tokens,
    heads,
    half,
    batch_gap,
    token_gap,
    head_gap,
    table_batch,
    table_token,
    table_gap,
    eps,
    CENTRED: tl.constexpr,
    ADJACENT: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    number = tl.program_id(0).to(tl.int64)
    batch, token = number // tokens, number % tokens
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    known = pair < half
    inside = (head < heads) & known
    if ADJACENT:
        first, second = 2 * pair, 2 * pair + 1
    else:
        first, second = pair, pair + half
    place = x + batch * batch_gap + token * token_gap + head * head_gap
    loaded = tl.load(place + first, inside, other=0.0)
    dtype: tl.constexpr = loaded.dtype
    one = loaded.to(tl.float32)
    other = tl.load(place + second, inside, other=0.0).to(tl.float32)
    if CENTRED:
        mean = ((tl.sum(one, 1) + tl.sum(other, 1)) / (2 * half))[:, None]
        one = tl.where(inside, one - mean, 0.0)
        other = tl.where(inside, other - mean, 0.0)
    variance = (tl.sum(one * one, 1) + tl.sum(other * other, 1)) / (2 * half)
    variance = variance[:, None]
    one_weight = tl.load(weight + first, known, other=0.0).to(tl.float32)
    other_weight = tl.load(weight + second, known, other=0.0).to(tl.float32)
    if CENTRED:
        deviation = tl.sqrt(variance + eps)
        one, other = one / deviation, other / deviation
        one = one * one_weight + tl.load(bias + first, known, other=0.0).to(tl.float32)
        other = other * other_weight + tl.load(bias + second, known, other=0.0).to(tl.float32)
    else:
        factor = tl.rsqrt(variance + eps)
        one, other = one * factor, other * factor
        one, other = rounded(one, dtype) * one_weight, rounded(other, dtype) * other_weight
    one, other = rounded(one, dtype), rounded(other, dtype)
    table = batch * table_batch + token * table_token + pair * table_gap
    stored = tl.load(cosine + table, known, other=0.0)
    kind: tl.constexpr = stored.dtype
    across = stored.to(tl.float32)
    up = tl.load(sine + table, known, other=0.0).to(tl.float32)
    turned = rounded(one * across, kind) - rounded(other * up, kind)
    tl.store(place + first, rounded(turned, kind).to(dtype), inside)
    turned = rounded(other * across, kind) + rounded(one * up, kind)
    tl.store(place + second, rounded(turned, kind).to(dtype), inside)


def norm_rotary(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    cosine: Tensor,
    sine: Tensor,
    adjacent: bool,
) -> Tensor:
    batch, tokens, heads, width = x.shape
    assert x.stride(-1) == 1 and cosine.stride() == sine.stride()
    cosine, sine = (one.expand(batch, -1, -1) for one in (cosine, sine))
    block = triton.next_power_of_2(width // 2)
    cut = tiles("norm_rotary", x.device, block)
    _norm_rotary[batch * tokens, triton.cdiv(heads, cut["HEADS"])](
        x,
        weight,
        bias,
        cosine,
        sine,
        tokens,
        heads,
        width // 2,
        *x.stride()[:3],
        *cosine.stride(),
        eps,
        CENTRED=bias is not None,
        ADJACENT=adjacent,
        HALF=block,
        enable_fp_fusion=False,  # torch rounds between its operations
        **cut,
    )
    return x
