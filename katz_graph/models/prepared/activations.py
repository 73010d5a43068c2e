"""Finds the kernels of transformers' activations that gate a second tensor. Imports no
transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from katz_graph.kernels.gated_activation import gelu_gated, silu_gated

GATES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "NewGELUActivation": gelu_gated,
    "SiLUActivation": silu_gated,
}
"""Maps the class of an activation to a function of gate and value."""


def unknown_gate(activation: nn.Module) -> str:
    """Returns the reason if an activation has no kernel, else an empty string."""
    name = type(activation).__name__
    return "" if name in GATES else f"activation {name}"


def gated(activation: nn.Module, gate: Tensor, value: Tensor) -> Tensor:
    """Returns activation(gate) · value."""
    return GATES[type(activation).__name__](gate, value)
