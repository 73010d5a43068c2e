"""Stores the weights of several projections of one input, to compute one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FUSED = "joint_projections"
"""Names the attribute of a block that holds its `FusedProjections`."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedProjections:
    """Holds the weights [N, C] and biases [N] of linear layers with N outputs together; the layers'
    parameters are views.
    """

    weight: Tensor
    bias: Tensor | None
    widths: list[int]

    @classmethod
    def of(cls, *layers: nn.Linear) -> FusedProjections:
        """Moves the weights of layers into one storage, and their biases into another. Layers have
        equal inputs, and all or none have a bias. Later in-place writes to a parameter take effect;
        replacing a parameter does not.
        """
        biases = [layer.bias for layer in layers if layer.bias is not None]
        weights = [layer.weight for layer in layers]
        widths = [len(one) for one in weights]
        return cls(_together(weights), _together(biases) if biases else None, widths)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs of all layers for x [..., C], as views of one tensor."""
        return torch.split(F.linear(x, self.weight, self.bias), self.widths, dim=-1)


class Fusible:
    """Describes a block with linear layers of one input, whose weights may be fused."""

    def projections(self) -> tuple[nn.Linear, ...]:
        """Returns the layers in the order of the block's computation."""
        raise NotImplementedError

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs of all layers for x [..., C], by one product if they are fused."""
        fused = getattr(self, FUSED, None)
        if fused is not None:
            outputs: tuple[Tensor, ...] = fused(x)
            return outputs
        return tuple(layer(x) for layer in self.projections())


def _together(parameters: Sequence[Tensor]) -> Tensor:
    whole = torch.cat([one.data for one in parameters])
    parts = torch.split(whole, [len(one) for one in parameters])
    for one, part in zip(parameters, parts, strict=True):
        one.data = part
    return whole
