"""Multiplies an activation of one tensor by another, in one pass over memory.

Stands in for `act(gate) · value` of transformers' gated feed-forward layers of T5 (GELU with tanh)
and of Qwen3's and Z-Image's (SiLU). In half precision every step is rounded where torch rounds.
Exponentials differ from torch's in the last place, so results are within rounding, not bit-equal.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels


def silu_gated(gate: Tensor, value: Tensor) -> Tensor:
    """Returns SiLU(gate) · value, both [..., N]; rows may have gaps, as halves of one product."""
    if uses_kernels(gate):
        from katz_graph.kernels.triton.gated_activation import gated_activation

        return gated_activation(gate, value, "silu")
    return silu_reference(gate, value)


def gelu_gated(gate: Tensor, value: Tensor) -> Tensor:
    """Returns GELU(gate) · value like `silu_gated`; GELU by tanh, as transformers' "gelu_new"."""
    if uses_kernels(gate):
        from katz_graph.kernels.triton.gated_activation import gated_activation

        return gated_activation(gate, value, "gelu_new")
    return gelu_reference(gate, value)


def silu_reference(gate: Tensor, value: Tensor) -> Tensor:
    return F.silu(gate) * value


def gelu_reference(gate: Tensor, value: Tensor) -> Tensor:
    cubic = gate + 0.044715 * torch.pow(gate, 3.0)
    return 0.5 * gate * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * cubic)) * value
