"""The kernels of `group_norm_silu`: statistics of channels over blocks of positions, statistics of
groups, and the normalised values.

Means and sums of squared deviations are merged as in Chan, Golub and LeVeque (1979), so a large
mean costs no precision. A program reads adjacent channels together, whatever the group size.

Why two passes over x: at SDXL's sizes (channels-last [2, H·W, C], 5 to 63 MB in 16 bits) the second
pass reads most of x from the cache (50 MB on Hopper). The statistics of a tensor could also come
from the kernel that wrote it, but only a quarter of the norms follow one of ours; the others follow
the library's convolutions and concatenations.

Why many small programs: a pass at full bandwidth needs about 32 KB in flight on each of 132
multiprocessors. A program reads a block of 64 positions by 64 channels (8 KB) at once, and a
multiprocessor has room for nine. There are 640 programs for [2, 32·32, 1280] and 2,560 for
[2, 128·128, 320]. If a program has several blocks, each of its threads has separate running
statistics, so that threads wait for each other only at the end. Partial statistics of 64 positions
are 1/16 of their bytes; `MAX_MERGED` limits their number.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.layout import dense, inner

MAX_MERGED = 8192  # partial statistics of a group, which one program holds in registers
MERGING_WARPS = 8  # of that program


@triton.jit
def _tile(
    channels, positions, size, across, along, blocks, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):
    """Returns this program's image, first position and channels, and the places of its first block.
    Consecutive programs have adjacent channels, which are adjacent in memory if channels are last.
    """
    batch, number = tl.program_id(1).to(tl.int64), tl.program_id(0)
    first = (number // blocks).to(tl.int64) * size
    first_channel = (number % blocks) * CHANNELS
    channel, row = tl.arange(0, CHANNELS), tl.arange(0, ROWS)
    place = batch * channels * positions + first * along + first_channel.to(tl.int64) * across
    places = place + (row[:, None] * along + channel[None, :] * across)
    return batch, first, first_channel + channel, places


@triton.jit
def _shifted(x, places, inside, more, SHIFTED: tl.constexpr):
    """Loads values, adds the shift, rounds to their dtype, and converts to float32."""
    value = tl.load(x + places, inside, other=0.0)
    if SHIFTED:
        value = (value.to(tl.float32) + more[None, :]).to(value.dtype)
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
    blocks,
    SHIFTED: tl.constexpr,
    ONCE: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Computes each channel's mean and sum of squared deviations, over `size` positions of an
    image. `ONCE`: these are one block.
    """
    batch, first, channel, places = _tile(
        channels, positions, size, across, along, blocks, ROWS, CHANNELS
    )
    known, row = channel < channels, tl.arange(0, ROWS)
    more = channel.to(tl.float32)  # replaced if it is used
    if SHIFTED:
        more = tl.load(shift + batch * channels + channel, known, other=0.0).to(tl.float32)
    left = tl.minimum(positions - first, size).to(tl.int32)
    if ONCE:
        inside = (row[:, None] < left) & known[None, :]
        value = _shifted(x, places, inside, more, SHIFTED)
        total = tl.sum(tl.where(inside, value, 0.0), 0) / left
        apart = tl.where(inside, value - total[None, :], 0.0)
        square = tl.sum(apart * apart, 0)
    else:
        mean = tl.zeros([ROWS, CHANNELS], tl.float32)
        deviations = tl.zeros([ROWS, CHANNELS], tl.float32)
        number = 0.0
        for start in range(0, size, ROWS):
            inside = (start + row[:, None] < left) & known[None, :]
            value = _shifted(x, places, inside, more, SHIFTED)
            places += ROWS * along
            number += 1.0
            step = tl.where(inside, value - mean, 0.0)
            mean += step * (1.0 / number)
            deviations += step * (value - mean)
        count = ((left - row + ROWS - 1) // ROWS).to(tl.float32)[:, None]  # values of each thread
        total = tl.sum(mean * count, 0) / left
        apart = mean - total[None, :]
        square = tl.sum(deviations + apart * apart * count, 0)
    there = (batch * parts + first // size) * channels + channel
    tl.store(means + there, total, known)
    tl.store(squares + there, square, known)


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
    channels,
    width,
    positions,
    across,
    along,
    blocks,
    SHIFTED: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Computes one block of positions and channels; loads the values of a channel once."""
    batch, first, channel, places = _tile(
        channels, positions, ROWS, across, along, blocks, ROWS, CHANNELS
    )
    known = channel < channels
    more = channel.to(tl.float32)  # replaced if it is used
    if SHIFTED:
        more = tl.load(shift + batch * channels + channel, known, other=0.0).to(tl.float32)
    group = batch * (channels // width) + channel // width
    mean = tl.load(mean_of + group, known, other=0.0)
    scale = tl.load(scale_of + group, known, other=0.0)
    scale *= tl.load(weight + channel, known, other=0.0).to(tl.float32)
    offset = tl.load(bias + channel, known, other=0.0).to(tl.float32)
    inside = (first + tl.arange(0, ROWS)[:, None] < positions) & known[None, :]
    value = _shifted(x, places, inside, more, SHIFTED)
    value = (value - mean[None, :]) * scale[None, :] + offset[None, :]
    if SILU:
        value = value / (1.0 + tl.exp(-value))
    tl.store(out + places, value, inside)


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
    across, along = (side, 1) if side > 1 else (1, channels)  # strides of channels, of positions
    moments = tiles("group_norm_moments", x.device, channels)
    normalise = tiles("group_norm_normalise", x.device, channels)
    rows = moments["ROWS"]
    most = max(1, MAX_MERGED // (channels // groups))
    size = triton.cdiv(positions, min(most, triton.cdiv(positions, rows)))
    size = triton.cdiv(size, rows) * rows
    parts = triton.cdiv(positions, size)
    means, squares = (
        torch.empty(batch, parts, channels, device=x.device, dtype=torch.float32) for _ in range(2)
    )
    mean_of, scale_of = (
        torch.empty(batch, groups, device=x.device, dtype=torch.float32) for _ in range(2)
    )
    shift, out = None if shift is None else shift.contiguous(), torch.empty_like(x)
    blocks = triton.cdiv(channels, moments["CHANNELS"])
    _moments[(blocks * parts, batch)](
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
        blocks,
        SHIFTED=shift is not None,
        ONCE=size == rows,
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
        num_warps=MERGING_WARPS,
    )
    blocks = triton.cdiv(channels, normalise["CHANNELS"])
    _normalise[(blocks * triton.cdiv(positions, normalise["ROWS"]), batch)](
        x,
        shift,
        weight,
        bias,
        mean_of,
        scale_of,
        out,
        channels,
        channels // groups,
        positions,
        across,
        along,
        blocks,
        SHIFTED=shift is not None,
        SILU=silu,
        **normalise,
    )
    return out
