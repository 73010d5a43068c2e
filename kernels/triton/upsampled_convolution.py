"""The kernels of `upsampled_convolution`: one sums the weights of the phases, one interleaves the
phases and adds the bias, in memory order. Both are bound by their bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles


@triton.jit
def _column_sum(place, by_row, inside, ODD: tl.constexpr, SECOND: tl.constexpr):
    """Returns the sum of a column's weights for one row of the 2 x 2 window: the first or the
    second, for even or odd rows of the result.
    """
    if ODD == SECOND:  # a single weight: the first of even rows, or the last of odd ones
        total = tl.load(place + 2 * SECOND * by_row, inside).to(tl.float32)
    else:
        total = tl.load(place + SECOND * by_row, inside).to(tl.float32)
        total += tl.load(place + (SECOND + 1) * by_row, inside).to(tl.float32)
    return total


@triton.jit
def _phase_weights(
    weight, out, inputs, outputs, by_output, by_input, by_row, by_column, BLOCK: tl.constexpr
):
    output = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < inputs
    first = weight + output * by_output + channel * by_input
    second, third = first + by_column, first + 2 * by_column
    for phase in tl.static_range(4):
        place = out + (phase * outputs + output) * 4 * inputs + channel
        for row in tl.static_range(2):
            left = _column_sum(first, by_row, inside, phase // 2, row)
            middle = _column_sum(second, by_row, inside, phase // 2, row)
            right = _column_sum(third, by_row, inside, phase // 2, row)
            if phase % 2 == 0:
                right += middle
            else:
                left += middle
            tl.store(place + 2 * row * inputs, left, inside)
            tl.store(place + (2 * row + 1) * inputs, right, inside)


@triton.jit
def _interleaved(
    phases,
    bias,
    out,
    size,
    channels,
    height,
    width,
    by_picture,
    by_channel,
    by_row,
    by_column,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    channel, pixel = place % channels, place // channels
    column, line = pixel % width, pixel // width
    row, picture = line % height, line // height
    odd_row, odd_column = row % 2, column % 2
    source = picture * by_picture + ((2 * odd_row + odd_column) * channels + channel) * by_channel
    source += (row // 2 + odd_row) * by_row + (column // 2 + odd_column) * by_column
    exact = tl.load(phases + source, inside).to(tl.float32)
    exact += tl.load(bias + channel, inside).to(tl.float32)
    tl.store(out + place, exact, inside)


def phase_weights(weight: Tensor) -> Tensor:
    outputs, inputs, _, _ = weight.shape
    out = torch.empty(
        (4 * outputs, inputs, 2, 2),
        dtype=weight.dtype,
        device=weight.device,
        memory_format=torch.channels_last,
    )
    cut = tiles("phase_weights", weight.device, inputs)
    grid = outputs, triton.cdiv(inputs, cut["BLOCK"])
    _phase_weights[grid](weight, out, inputs, outputs, *weight.stride(), **cut)
    return out


def interleaved(phases: Tensor, bias: Tensor) -> Tensor:
    batch, channels, height, width = phases.shape
    size = batch, channels // 4, 2 * (height - 1), 2 * (width - 1)
    out = torch.empty(
        size, dtype=phases.dtype, device=phases.device, memory_format=torch.channels_last
    )
    cut = tiles("interleaved", phases.device, out.numel())
    _interleaved[(triton.cdiv(out.numel(), cut["BLOCK"]),)](
        phases, bias, out, out.numel(), *size[1:], *phases.stride(), **cut
    )
    return out
