"""Stores the weights of several projections of one input, to compute one product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from katz_graph.models.quantised_weight import QuantisedWeight

FUSED = "joint_projections"
"""Names the attribute of a block that holds its `FusedProjections`."""


@dataclass(frozen=True, slots=True, eq=False)
class FusedProjections:
    """Holds the weights [N, C] and biases [N] of linear layers with N outputs together; the layers'
    parameters are views. Weights that are stored as 8-bit numbers are put together in each call.
    """

    weights: Sequence[Tensor]
    """One weight of all layers, or the weight of each layer."""
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
        weights = [layer.weight for layer in layers]
        if not any(isinstance(one, QuantisedWeight) for one in weights):
            weights = [_together(weights, widths)]
        return cls(weights, _together(biases, widths) if biases else None, widths)

    @property
    def weight(self) -> Tensor:
        """Returns the weights of all layers together."""
        first, *others = self.weights
        if not others and not isinstance(first, QuantisedWeight):
            return first
        whole = first.new_empty(sum(self.widths), first.shape[1])
        for one, part in zip(self.weights, whole.split_with_sizes(self.widths), strict=True):
            if isinstance(one, QuantisedWeight):
                one.read(part)
            else:
                part.copy_(one)
        return whole

    def reads(self, weight: Tensor) -> bool:
        """Returns whether `weight` is that of one of the layers."""
        if isinstance(weight, QuantisedWeight) or len(self.weights) > 1:
            return any(one is weight for one in self.weights)
        storage = weight.untyped_storage()
        return self.weights[0].untyped_storage().data_ptr() == storage.data_ptr()

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs of all layers for x [..., C], as views of `whole`."""
        return tuple(self.whole(x).split_with_sizes(self.widths, dim=-1))

    def part(self, first: int, last: int) -> FusedProjections:
        """Returns the layers from number `first` to `last`, exclusive, as views."""
        start, end = sum(self.widths[:first]), sum(self.widths[:last])
        bias = None if self.bias is None else self.bias[start:end]
        one = len(self.weights) == 1 and not isinstance(self.weights[0], QuantisedWeight)
        weights = [self.weights[0][start:end]] if one else self.weights[first:last]
        return FusedProjections(weights, bias, self.widths[first:last])

    def whole(self, x: Tensor) -> Tensor:
        """Returns the outputs [..., N] of all layers for x [..., C]."""
        return F.linear(x, self.weight, self.bias)

    def into(self, x: Tensor, out: Tensor) -> None:
        """Writes the outputs for x [B, T, C] to `out` [B, T, N], which may be a part of more
        tokens. Outside autograd only.
        """
        weight = self.weight.T
        for row, place in zip(x, out, strict=True):
            if self.bias is None:
                torch.mm(row, weight, out=place)
            else:
                torch.addmm(self.bias, row, weight, out=place)


@dataclass(frozen=True, slots=True, eq=False)
class Projections:
    """Holds linear layers of one input, and their weights together if they are fused."""

    layers: Sequence[nn.Linear]
    fused: FusedProjections | None

    def part(self, first: int, last: int) -> Projections:
        """Returns the layers from number `first` to `last`, exclusive."""
        fused = None if self.fused is None else self.fused.part(first, last)
        return Projections(self.layers[first:last], fused)

    def whole(self, x: Tensor) -> Tensor:
        """Returns the outputs [..., N] of all layers for x [..., C]."""
        if self.fused is not None:
            return self.fused.whole(x)
        return torch.cat([layer(x) for layer in self.layers], dim=-1)

    def into(self, x: Tensor, out: Tensor) -> None:
        """Writes the outputs for x [B, T, C] to `out` [B, T, N], see `FusedProjections.into`."""
        if self.fused is not None:
            self.fused.into(x, out)
            return
        widths = [layer.out_features for layer in self.layers]
        for layer, place in zip(self.layers, out.split_with_sizes(widths, dim=-1), strict=True):
            place.copy_(layer(x))

    @property
    def width(self) -> int:
        """Returns N, the number of outputs of all layers."""
        return sum(layer.out_features for layer in self.layers)


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
