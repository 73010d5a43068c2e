"""Computes linear layers and convolutions with oneDNN on CPUs with a slow BLAS library, over the
same weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.kernels.products import by_onednn, linear
from katz_graph.models.quantised_weight import QuantisedWeight

PACK = "packed_weight"
"""Names the attribute of a convolution that holds its `Packed`."""
MAX_LAYOUTS = 4
"""Most copies of one convolution's weights. Few layers have more than one layout."""
MAX_SIZES = 64
"""Most input sizes of one convolution whose layouts are remembered."""
PADDING = slice(108, 112)
"""Bytes in oneDNN's description of a layout to which compilers assign no value."""
UNVERSIONED = (0, 0)
WORDS = ("same", "valid")
"""Paddings by name; torch computes these convolutions."""


class ProcessorLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class ProcessorConvolution(nn.Conv2d):
    """Computes with a copy of the weights, packed for oneDNN's kernels. Returns features [B, C, H,
    W] in channels-last order. Packs again if the weights change, and for each input size. Rows may
    change, as when requests share calls: the layout does not depend on them, or else oneDNN
    converts it. A weight that is stored as 8-bit numbers is packed in each call.
    """

    def forward(self, input: Tensor) -> Tensor:
        counted = not self.weight.is_inference()  # inference tensors do not count writes
        if not (by_onednn(input) and input.ndim == 4 and input.numel() and counted):
            return super().forward(input)
        for_call = isinstance(self.weight, QuantisedWeight)
        packed = Packed(UNVERSIONED) if for_call else self._packed()
        found: Tensor = torch.ops.mkldnn._convolution_pointwise(
            input, packed.weight(self, input), self.bias, *_geometry(self), "none", [], ""
        )
        return found

    def _packed(self) -> Packed:
        packed: Packed | None = getattr(self, PACK, None)
        if packed is None or packed.version != _version(self.weight):
            packed = Packed(_version(self.weight))
            setattr(self, PACK, packed)
        return packed


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Holds the weights of a convolution at a `version`, packed for input sizes [C, H, W]. Sizes of
    one layout share a copy.
    """

    version: tuple[int, int]
    sizes: dict[torch.Size, Tensor] = field(default_factory=dict)
    layouts: dict[bytes, Tensor] = field(default_factory=dict)

    def weight(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        """Returns the layer's weights, packed for x [B, C, H, W]."""
        found = self.sizes.get(x.shape[1:])
        if found is None:
            made = torch.ops.mkldnn._reorder_convolution_weight(
                layer.weight, *_geometry(layer), list(x.shape)
            )
            layout = _layout(made)
            full = layout not in self.layouts and len(self.layouts) == MAX_LAYOUTS
            if full or len(self.sizes) == MAX_SIZES:
                self.sizes.clear()
                self.layouts.clear()
            found = self.layouts.setdefault(layout, made)
            self.sizes[x.shape[1:]] = found
        return found


def _layout(packed: Tensor) -> bytes:
    """Returns oneDNN's description of the layout of packed weights."""
    described = bytearray(torch.ops.mkldnn._get_mkldnn_serialized_md(packed).tolist())
    del described[PADDING]
    return bytes(described)


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
