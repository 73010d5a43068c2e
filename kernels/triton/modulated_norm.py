"""The kernel of `modulated_norm`: each program computes several rows of one picture, each held in
registers, and reads their gates, scales and shifts once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles

Pairs = Sequence[tuple[Tensor, Tensor]]


@triton.jit
def _gated_sum(total, gate, x):
    """Rounds the product and the sum to the dtype of `total`."""
    product = (gate.to(tl.float32) * x.to(tl.float32)).to(total.dtype)
    return (total.to(tl.float32) + product.to(tl.float32)).to(total.dtype)


@triton.jit
def _modulated(normalised, scale, shift):
    """Rounds 1 + scale and the product to the dtype of `normalised`; the caller rounds the sum."""
    factor = (1.0 + scale.to(tl.float32)).to(normalised.dtype)
    product = (normalised.to(tl.float32) * factor.to(tl.float32)).to(normalised.dtype)
    return product.to(tl.float32) + shift.to(tl.float32)


@triton.jit
def _gated_norms(
    residual,
    x,
    gate,
    other_x,
    other_gate,
    total,
    scale,
    shift,
    out,
    other_scale,
    other_shift,
    other_out,
    tokens,
    width,
    apart,
    eps,
    TERMS: tl.constexpr,
    NORMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    picture = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    vector = picture * apart + column
    if TERMS > 0:
        gates = tl.load(gate + vector, inside, other=0.0)
    if TERMS > 1:
        other_gates = tl.load(other_gate + vector, inside, other=0.0)
    if NORMS > 0:
        scales = tl.load(scale + vector, inside, other=0.0)
        shifts = tl.load(shift + vector, inside, other=0.0)
    if NORMS > 1:
        other_scales = tl.load(other_scale + vector, inside, other=0.0)
        other_shifts = tl.load(other_shift + vector, inside, other=0.0)
    first = tl.program_id(0) * ROWS
    for token in range(first, tl.minimum(first + ROWS, tokens)):
        place = (picture * tokens + token) * width + column
        sum = tl.load(residual + place, inside, other=0.0)
        if TERMS > 0:
            sum = _gated_sum(sum, gates, tl.load(x + place, inside, other=0.0))
        if TERMS > 1:
            sum = _gated_sum(sum, other_gates, tl.load(other_x + place, inside, other=0.0))
        if TERMS > 0:
            tl.store(total + place, sum, inside)
        if NORMS > 0:
            exact = sum.to(tl.float32)
            difference = tl.where(inside, exact - tl.sum(exact, 0) / width, 0.0)
            variance = tl.sum(difference * difference, 0) / width
            normalised = (difference * tl.rsqrt(variance + eps)).to(sum.dtype)
            tl.store(out + place, _modulated(normalised, scales, shifts), inside)
            if NORMS > 1:
                modulated = _modulated(normalised, other_scales, other_shifts)
                tl.store(other_out + place, modulated, inside)


def gated_norms(residual: Tensor, terms: Pairs, modulations: Pairs, eps: float) -> list[Tensor]:
    residual = residual.contiguous()
    batch, tokens, width = residual.shape
    total = torch.empty_like(residual) if terms else residual
    made = [torch.empty_like(residual) for _ in modulations]
    vectors, apart = _vectors([gate for gate, _ in terms], modulations)
    count = len(terms)
    gates, scales, shifts = vectors[:count], vectors[count::2], vectors[count + 1 :: 2]
    values = [x.contiguous() for _, x in terms]
    summed = [*zip(values, gates, strict=True), *[(None, None)] * 2]
    modulated = [*zip(scales, shifts, made, strict=True), *[(None, None, None)] * 2]
    block = triton.next_power_of_2(width)
    cut = tiles("modulated_norm", residual.device, block)
    _gated_norms[(triton.cdiv(tokens, cut["ROWS"]), batch)](
        residual,
        *summed[0],
        *summed[1],
        total,
        *modulated[0],
        *modulated[1],
        tokens,
        width,
        apart,
        eps,
        TERMS=len(terms),
        NORMS=len(modulations),
        BLOCK=block,
        enable_fp_fusion=False,  # torch rounds between its operations
        **cut,
    )
    return [total, *made]


def _vectors(gates: Sequence[Tensor], modulations: Pairs) -> tuple[list[Tensor], int]:
    """Returns gates, scales and shifts [B, C] of one stride, and the stride of B."""
    vectors = [*gates, *(vector for pair in modulations for vector in pair)]
    strides = {one.stride() for one in vectors}
    if len(strides) > 1 or vectors[0].stride(1) != 1:
        vectors = [one.contiguous() for one in vectors]
    return vectors, vectors[0].stride(0)
