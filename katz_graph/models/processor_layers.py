"""Computes linear layers and convolutions with oneDNN on CPUs with a slow BLAS library, over the
same weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.kernels.products import by_onednn, linear

PACK = "packed_weight"
"""Names the attribute of a convolution that holds its `Packed`."""
WORDS = ("same", "valid")
"""Paddings by name; torch computes these convolutions."""


class ProcessorLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class ProcessorConvolution(nn.Conv2d):
    """Computes with a copy of the weights, packed for oneDNN's kernels. Returns features [B, C, H,
    W] in channels-last order. Packs again if weights or input size change. Rows may change, as when
    requests share calls: the layout does not depend on them, or else oneDNN converts it.
    """

    def forward(self, input: Tensor) -> Tensor:
        counted = not self.weight.is_inference()  # inference tensors do not count writes
        if not (by_onednn(input) and input.ndim == 4 and input.numel() and counted):
            return super().forward(input)
        packed: Packed | None = getattr(self, PACK, None)
        if packed is None or not packed.fits(self.weight, input):
            packed = Packed.of(self, input)
            setattr(self, PACK, packed)
        found: Tensor = torch.ops.mkldnn._convolution_pointwise(
            input, packed.weight, self.bias, *_geometry(self), "none", [], ""
        )
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Holds the weights of a convolution at a `version`, packed for an input size [C, H, W]."""

    weight: Tensor
    version: tuple[int, int]
    size: torch.Size

    @classmethod
    def of(cls, layer: nn.Conv2d, x: Tensor) -> Packed:
        weight = torch.ops.mkldnn._reorder_convolution_weight(
            layer.weight, *_geometry(layer), list(x.shape)
        )
        return cls(weight, _version(layer.weight), x.shape[1:])

    def fits(self, weight: Tensor, x: Tensor) -> bool:
        return self.size == x.shape[1:] and self.version == _version(weight)


def _version(weight: Tensor) -> tuple[int, int]:
    """Returns a value that changes when a weight is written or its memory is replaced."""
    return weight._version, weight.data_ptr()


def _geometry(layer: nn.Conv2d) -> tuple[Any, ...]:
    return layer.padding, layer.stride, layer.dilation, layer.groups


def use_processor_layers(module: nn.Module) -> None:
    """Replaces the forwards of a module's linear layers and convolutions by oneDNN's."""
    for one in module.modules():
        if type(one) is nn.Linear:
            one.__class__ = ProcessorLinear
        elif type(one) is nn.Conv2d and one.padding_mode == "zeros" and one.padding not in WORDS:
            one.__class__ = ProcessorConvolution
