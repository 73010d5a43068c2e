"""Holds the weights of several projections of one input in one storage, for one product."""

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
    """Holds the weights [n · C', C] and biases [n · C'] of n linear layers, which are views of
    them.
    """

    weight: Tensor
    bias: Tensor | None
    count: int

    @classmethod
    def of(cls, *layers: nn.Linear) -> FusedProjections:
        """Moves the parameters of layers of equal shape, all with a bias or none, into one storage
        for each kind. What is written into a layer's parameter is seen from then on, as long as
        the parameter is not replaced.
        """
        biases = [layer.bias for layer in layers if layer.bias is not None]
        weights = [layer.weight for layer in layers]
        return cls(_together(weights), _together(biases) if biases else None, len(layers))

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns what each layer gives of x [..., C]: n times [..., C']."""
        return F.linear(x, self.weight, self.bias).chunk(self.count, dim=-1)


def _together(parameters: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([one.data for one in parameters])
    for one, part in zip(parameters, whole.chunk(len(parameters)), strict=True):
        one.data = part
    return whole
