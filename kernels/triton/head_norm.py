"""The kernel of `head_norm`: one program per token, over blocks of heads, held as pairs."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles


@triton.jit
def _normalised(value, weight, root, ROUNDS: tl.constexpr):
    exact = value.to(tl.float32) * root
    if ROUNDS:
        exact = exact.to(value.dtype).to(tl.float32)
    return (exact * weight.to(tl.float32)).to(value.dtype).to(tl.float32)


@triton.jit
def _pairs(row):
    """Returns the values at even and at odd places, each as one row."""
    one, other = tl.split(tl.reshape(row, [row.shape[0] // 2, 2]))
    return one[None, :], other[None, :]


@triton.jit
def _head_norm(
    x,
    cosines,
    sines,
    positions,
    first,
    other_first,
    last,
    other_last,
    tokens,
    end,
    heads,
    batch_stride,
    token_stride,
    eps,
    WIDTH: tl.constexpr,
    PAIRS: tl.constexpr,
    PARTS: tl.constexpr,
    ROTARY: tl.constexpr,
    LISTED: tl.constexpr,
    ROUNDS: tl.constexpr,
    HEADS: tl.constexpr,
):
    program = tl.program_id(0)
    token = program % tokens
    row = x + (program // tokens).to(tl.int64) * batch_stride + token.to(tl.int64) * token_stride
    head = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, 2 * PAIRS)
    inside = column < WIDTH
    if ROTARY:
        position = token
        if LISTED:
            number = (program // tokens) * (tokens - end) + token - end
            listed = tl.load(positions + number, token >= end, other=0).to(tl.int32)
            position = tl.where(token < end, token, end + listed)
        turns = position * WIDTH + column
        cosine, other_cosine = _pairs(tl.load(cosines + turns, inside, other=0.0))
        sine, other_sine = _pairs(tl.load(sines + turns, inside, other=0.0))
    for part in tl.static_range(PARTS):
        if token < end:
            weights = tl.load((other_first if part else first) + column, inside, other=0.0)
        else:
            weights = tl.load((other_last if part else last) + column, inside, other=0.0)
        weight, other_weight = _pairs(weights)
        for start in range(0, heads, HEADS):
            place = row + (part * heads + start + head) * WIDTH + column[None, :]
            here = inside[None, :] & (start + head < heads)
            values = tl.load(place, here, other=0.0)
            exact = values.to(tl.float32)
            root = tl.rsqrt(tl.sum(exact * exact, 1) / WIDTH + eps)[:, None]
            real, imaginary = tl.split(tl.reshape(values, [HEADS, PAIRS, 2]))
            real = _normalised(real, weight, root, ROUNDS)
            imaginary = _normalised(imaginary, other_weight, root, ROUNDS)
            if ROTARY:
                turned = real * cosine + -imaginary * sine
                imaginary = imaginary * other_cosine + real * other_sine
                real = turned
            made = tl.reshape(tl.join(real, imaginary), [HEADS, 2 * PAIRS])
            tl.store(place, made, here)


def head_norm(
    x: Tensor,
    heads: int,
    weights: tuple[Sequence[Tensor], Sequence[Tensor]],
    end: int,
    eps: float,
    rounds: bool,
    rotary: tuple[Tensor, Tensor] | None,
    positions: Tensor | None,
) -> None:
    """`weights`: of the tokens before `end`, then of those from `end`."""
    batch, tokens, _ = x.shape
    first, last = weights
    width = len(first[0])
    cosines, sines = (None, None) if rotary is None else (one.contiguous() for one in rotary)
    _head_norm[(batch * tokens,)](
        x,
        cosines,
        sines,
        None if positions is None else positions.contiguous(),
        first[0],
        first[-1],
        last[0],
        last[-1],
        tokens,
        end,
        heads,
        x.stride(0),
        x.stride(1),
        eps,
        WIDTH=width,
        PAIRS=triton.next_power_of_2(width) // 2,
        PARTS=len(first),
        ROTARY=rotary is not None,
        LISTED=positions is not None,
        ROUNDS=rounds,
        enable_fp_fusion=False,  # torch rounds between its operations
        **tiles("head_norm", x.device, width),
    )
