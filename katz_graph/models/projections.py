"""Stores the weights of several projections of one input, to compute one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FUSED = "query_key_value"
"""Names the attribute of an attention layer that holds its `FusedProjections`."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedProjections:
    """Holds the weights [n · C', C] and biases [n · C'] of n linear layers; the layers' parameters
    are views.
    """

    weight: Tensor
    bias: Tensor | None
    count: int

    @classmethod
    def of(cls, *layers: nn.Linear) -> FusedProjections:
        """Moves the weights of layers into one storage, and their biases into another. Layers have
        equal shapes, and all or none have a bias. Later in-place writes to a parameter take effect;
        replacing a parameter does not.
        """
        biases = [layer.bias for layer in layers if layer.bias is not None]
        weights = [layer.weight for layer in layers]
        return cls(_together(weights), _together(biases) if biases else None, len(layers))

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs of all layers for x [..., C]: n times [..., C']."""
        return F.linear(x, self.weight, self.bias).chunk(self.count, dim=-1)


def _together(parameters: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([one.data for one in parameters])
    for one, part in zip(parameters, whole.chunk(len(parameters)), strict=True):
        one.data = part
    return whole
