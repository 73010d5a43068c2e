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
        widths = [len(layer.weight) for layer in layers]
        weight = _together([layer.weight for layer in layers], widths)
        return cls(weight, _together(biases, widths) if biases else None, widths)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs of all layers for x [..., C], as views of `whole`."""
        return tuple(self.whole(x).split_with_sizes(self.widths, dim=-1))

    def whole(self, x: Tensor) -> Tensor:
        """Returns the outputs [..., N] of all layers for x [..., C]."""
        return F.linear(x, self.weight, self.bias)

    def into(self, x: Tensor, out: Tensor) -> None:
        """Writes the outputs for x [B, T, C] to `out` [B, T, N], which may be a part of more
        tokens. Outside autograd only.
        """
        for row, place in zip(x, out, strict=True):
            if self.bias is None:
                torch.mm(row, self.weight.T, out=place)
            else:
                torch.addmm(self.bias, row, self.weight.T, out=place)


class Fusible:
    """Describes a block with linear layers of one input, whose weights may be fused."""

    def fuse(self) -> None:
        """Replaces parameters by views of `FusedProjections`. Blocks with layers of several inputs
        override this.
        """
        setattr(self, FUSED, FusedProjections.of(*self.projections()))

    def projections(self) -> tuple[nn.Linear, ...]:
        """Returns the layers in the order of the block's computation."""
        raise NotImplementedError

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs of all layers for x [..., C], by one product if they are fused."""
        return projected(getattr(self, FUSED, None), self.projections(), x)


def projected(
    fused: FusedProjections | None, layers: Sequence[nn.Linear], x: Tensor
) -> tuple[Tensor, ...]:
    """Returns the outputs of layers for x [..., C], by one product if they are fused."""
    return tuple(layer(x) for layer in layers) if fused is None else fused(x)


def _together(parameters: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    whole = torch.cat([one.data for one in parameters])
    for one, part in zip(parameters, whole.split_with_sizes(widths), strict=True):
        one.data = part
    return whole
