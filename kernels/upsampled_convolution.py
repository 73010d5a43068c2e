"""Convolves features after nearest upsampling by 2, with 4/9 of the products.

Stands in for diffusers' Upsample2D. Each pixel of the result reads 2 x 2 pixels before upsampling,
so the 3 x 3 convolution equals four 2 x 2 convolutions, one for each parity of row and column
(phase), whose weights are sums of the nine. Results are never bit-equal: the sums are rounded to
the weights' dtype, so in 16 bits the error of this convolution alone is 1.41 times the library's.
Weights are summed in each call, so changed weights take effect.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels

PHASES = 4  # of row and column: even-even, even-odd, odd-even, odd-odd


def upsampled_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Returns the 3 x 3 convolution with padding 1 of x, upsampled to twice its size.

    x: [B, C, H, W], weight: [O, C, 3, 3], bias: [O]; returns [B, O, 2 H, 2 W], channels-last. Pixel
    (y, x) of one convolution with all phases has the window of rows y - 1 and y, columns x - 1 and
    x.
    """
    if uses_kernels(x):
        from katz_graph.kernels.triton import upsampled_convolution as kernel

        phases = F.conv2d(x, kernel.phase_weights(weight), padding=1)
        return kernel.interleaved(phases, bias)
    return reference(x, weight, bias)


def reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return interleaved_reference(F.conv2d(x, weights_reference(weight), padding=1), bias)


def weights_reference(weight: Tensor) -> Tensor:
    """Sums weights [O, C, 3, 3] in float32 to [4 O, C, 2, 2]: all channels of the first phase, then
    those of the next.
    """
    rows = _summed(_as_summed(weight), 2)
    phases = [column for row in rows for column in _summed(row, 3)]
    return torch.cat(phases).to(weight.dtype)


def _as_summed(weight: Tensor) -> Tensor:
    return weight if weight.dtype == torch.float64 else weight.float()


def _summed(weight: Tensor, side: int) -> list[Tensor]:
    """Returns the two pairs of sums along a side of 3: of even, then of odd pixels."""
    first, second, third = weight.unbind(side)
    even, odd = (first, second + third), (first + second, third)
    return [torch.stack(pair, side) for pair in (even, odd)]


def interleaved_reference(phases: Tensor, bias: Tensor) -> Tensor:
    """Returns the pixels [B, O, 2 H, 2 W] of phases [B, 4 O, H + 1, W + 1], with the bias."""
    batch, channels, height, width = phases.shape
    size = batch, channels // PHASES, 2 * (height - 1), 2 * (width - 1)
    out = phases.new_empty(size).to(memory_format=torch.channels_last)
    exact = _as_summed(phases).reshape(batch, PHASES, -1, height, width)
    exact = exact + _as_summed(bias)[:, None, None]
    for phase in range(PHASES):
        row, column = divmod(phase, 2)
        windows = exact[:, phase, :, row : height - 1 + row, column : width - 1 + column]
        out[:, :, row::2, column::2] = windows
    return out
