"""The kernel of `gated_activation`: one program per row and block of columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.triton.rounding import rounded


@triton.jit
def _gated_activation(
    gate, value, out, width, gate_row, value_row, GELU: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    own = tl.load(gate + row * gate_row + column, inside)
    other = tl.load(value + row * value_row + column, inside).to(tl.float32)
    dtype: tl.constexpr = own.dtype
    x = own.to(tl.float32)
    if GELU:
        # each step is rounded, because the library computes each with an operation of torch
        square = rounded(x * x, dtype)
        cubic = rounded(0.044715 * rounded(square * x, dtype), dtype)
        inner = rounded(0.7978845608028654 * rounded(x + cubic, dtype), dtype)  # sqrt(2 / pi)
        tanh = rounded(1.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0), dtype)
        active = rounded(0.5 * x, dtype) * rounded(1.0 + tanh, dtype)
    else:
        active = x / (1.0 + tl.exp(-x))
    tl.store(out + row * width + column, rounded(active, dtype) * other, inside)


def gated_activation(gate: Tensor, value: Tensor, activation: str) -> Tensor:
    """Takes [..., N] with equal distances between rows. `activation`: silu or gelu_new."""
    shape, width = gate.shape, gate.shape[-1]
    # of a contiguous tensor or of columns of one, these are views
    gate, value = gate.reshape(-1, width), value.reshape(-1, width)
    out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    cut = tiles("gated_activation", gate.device, width)
    _gated_activation[len(gate), triton.cdiv(width, cut["BLOCK"])](
        gate,
        value,
        out,
        width,
        gate.stride(0),
        value.stride(0),
        GELU=activation == "gelu_new",
        enable_fp_fusion=False,  # torch rounds between its operations
        **cut,
    )
    return out.view(shape)
