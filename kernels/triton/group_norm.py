"""The kernels of `group_norm_silu`: statistics of channels over blocks of positions, statistics of
groups, and the normalised values.

Means and sums of squared deviations are merged as in Chan, Golub and LeVeque (1979), so a large
mean costs no precision. A program reads adjacent channels together, whatever the group size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.layout import dense, inner

POSITIONS = 512  # minimum positions that a program reads
PROGRAMS = 128  # maximum programs per channel


@triton.jit
def _shifted(x, shift, place, channel, batch, channels, inside, SHIFTED: tl.constexpr):
    """Loads values, adds the shift, rounds to their dtype, and converts to float32."""
    value = tl.load(x + place, inside, other=0.0)
    if SHIFTED:
        more = tl.load(shift + batch * channels + channel, inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
    return value.to(tl.float32)


@triton.jit
def _moments(
    x,
    shift,
    means,
    squares,
    channels,
    positions,
    parts,
    size,
    across,
    along,
    SHIFTED: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Computes each channel's mean and sum of squared deviations, over one block of positions of an
    image.
    """
    batch, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    mean = tl.zeros([CHANNELS], tl.float32)
    square = tl.zeros([CHANNELS], tl.float32)
    count = 0.0
    for start in range(0, size, ROWS):
        row = part * size + start + tl.arange(0, ROWS)
        rows = tl.minimum(tl.maximum(positions - part * size - start, 0), ROWS).to(tl.float32)
        inside = (row[:, None] < positions) & (channel[None, :] < channels)
        place = batch * channels * positions + row[:, None] * along + channel[None, :] * across
        value = _shifted(x, shift, place, channel[None, :], batch, channels, inside, SHIFTED)
        here = tl.sum(value, 0) / tl.maximum(rows, 1.0)
        apart = tl.where(inside, value - here[None, :], 0.0)
        total = tl.maximum(count + rows, 1.0)
        step = here - mean
        square += tl.sum(apart * apart, 0) + step * step * (count * rows / total)
        mean += step * (rows / total)
        count += rows
    there = (batch * parts + part) * channels + channel
    tl.store(means + there, mean, channel < channels)
    tl.store(squares + there, square, channel < channels)


@triton.jit
def _groups(
    means,
    squares,
    mean_of,
    scale_of,
    channels,
    width,
    positions,
    parts,
    size,
    eps,
    SIZE: tl.constexpr,
):
    """Computes each group's mean and reciprocal standard deviation."""
    batch, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = tl.arange(0, SIZE)
    part, channel = index // width, group * width + index % width
    inside = part < parts
    count = tl.where(inside, tl.minimum(positions - part * size, size), 0).to(tl.float32)
    there = (batch * parts + part) * channels + channel
    means = tl.load(means + there, inside, other=0.0)
    total = tl.sum(count, 0)
    mean = tl.sum(means * (count / total), 0)
    apart = tl.where(inside, means - mean, 0.0)
    square = tl.sum(tl.load(squares + there, inside, other=0.0) + apart * apart * count, 0)
    number = batch * tl.num_programs(1) + group
    tl.store(mean_of + number, mean)
    tl.store(scale_of + number, 1.0 / tl.sqrt(square / total + eps))


@triton.jit
def _normalise(
    x,
    shift,
    weight,
    bias,
    mean_of,
    scale_of,
    out,
    size,
    channels,
    inner,
    width,
    picture,
    SHIFTED: tl.constexpr,
    SILU: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    channel, batch = (place // inner) % channels, place // picture
    value = _shifted(x, shift, place, channel, batch, channels, inside, SHIFTED)
    number = batch * (channels // width) + channel // width
    value = (value - tl.load(mean_of + number, inside)) * tl.load(scale_of + number, inside)
    value = value * tl.load(weight + channel, inside).to(tl.float32)
    value += tl.load(bias + channel, inside).to(tl.float32)
    if SILU:
        value = value / (1.0 + tl.exp(-value))
    tl.store(out + place, value, inside)


def group_norm_silu(
    x: Tensor,
    groups: int,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    shift: Tensor | None,
    silu: bool,
) -> Tensor:
    x = dense(x)
    batch, channels, height, width = x.shape
    positions, side = height * width, inner(x)
    moments = tiles("group_norm_moments", x.device, channels)
    normalise = tiles("group_norm_normalise", x.device, x.numel())
    rows = moments["ROWS"]
    size = (
        triton.cdiv(triton.cdiv(positions, min(PROGRAMS, triton.cdiv(positions, POSITIONS))), rows)
        * rows
    )
    parts = triton.cdiv(positions, size)
    across, along = (side, 1) if side > 1 else (1, channels)  # strides of channels, of positions
    means, squares = (
        torch.empty(batch, parts, channels, device=x.device, dtype=torch.float32) for _ in range(2)
    )
    mean_of, scale_of = (
        torch.empty(batch, groups, device=x.device, dtype=torch.float32) for _ in range(2)
    )
    shift, out = None if shift is None else shift.contiguous(), torch.empty_like(x)
    _moments[(batch, parts, triton.cdiv(channels, moments["CHANNELS"]))](
        x,
        shift,
        means,
        squares,
        channels,
        positions,
        parts,
        size,
        across,
        along,
        SHIFTED=shift is not None,
        **moments,
    )
    _groups[(batch, groups)](
        means,
        squares,
        mean_of,
        scale_of,
        channels,
        channels // groups,
        positions,
        parts,
        size,
        eps,
        SIZE=triton.next_power_of_2(parts * channels // groups),
    )
    _normalise[(triton.cdiv(x.numel(), normalise["BLOCK"]),)](
        x,
        shift,
        weight,
        bias,
        mean_of,
        scale_of,
        out,
        x.numel(),
        channels,
        side,
        channels // groups,
        channels * positions,
        SHIFTED=shift is not None,
        SILU=silu,
        **normalise,
    )
    return out
