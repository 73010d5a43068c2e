"""Holds the weight of a layer as it is stored, in 8-bit numbers, and widens it when it is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from katz_graph.kernels.quantised.widening import widened

LAYERS = (nn.Linear, nn.Conv2d, nn.Embedding)
"""Layers whose weights may be stored as 8-bit numbers in memory."""


@dataclass(frozen=True, slots=True)
class Format:
    """Describes a weight that is stored as 8-bit numbers of a dtype. `scaled`: each row has a
    scale. `group`: inputs that are rotated together, 0 without a rotation.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    scaled: bool = False
    group: int = 0

    @property
    def values(self) -> int:
        return math.prod(self.shape)


class QuantisedWeight(nn.Parameter):
    """A weight with the shape, dtype and device of the wide weight, and the memory of the stored
    one.

    Torch functions read the widened values, which exist during the call only; an embedding widens
    the rows that it returns. Functions that write to the weight or take its address raise
    TypeError; kernels take `wide(weight)`.
    """

    codes: Tensor  # [N, ...]
    scales: Tensor | None  # [N] float32
    group: int
    replacement: Tensor | None
    """Wide values that are read instead, for example those with LoRAs."""

    @staticmethod
    def empty(outline: Tensor, how: Format, place: torch.device) -> QuantisedWeight:
        """Allocates uninitialised memory for a weight. `outline`: the wide weight on the meta
        device.
        """
        made = Tensor._make_subclass(QuantisedWeight, outline.detach(), False)
        made.codes = torch.empty_strided(
            outline.shape, outline.stride(), dtype=how.dtype, device=place
        )
        made.scales = torch.empty(len(outline), device=place) if how.scaled else None
        made.group, made.replacement = how.group, None
        return made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        if function in ITSELF:
            return args[0]
        if function in OF_CODES:
            return function(args[0].codes)
        if function in OF_OUTLINE:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **given)
        if function is F.embedding and not args[2:] and given.keys() <= LOOKS_UP:
            return args[1].rows(args[0])
        name = getattr(function, "__name__", "")
        if name == "data_ptr" or (name.endswith("_") and not name.endswith("__")) or "out" in given:
            raise TypeError(f"{name} of a weight that is stored as 8-bit numbers: use `wide`")
        return function(*_wide_in(args), **_wide_in(given))

    @property
    def memory(self) -> dict[str, Tensor]:
        """Returns the tensors that hold the values."""
        parts = {".codes": self.codes, ".scales": self.scales, ".replacement": self.replacement}
        return {name: one for name, one in parts.items() if one is not None}

    def read(self, out: Tensor | None = None) -> Tensor:
        """Returns the wide values, in new memory or in `out`."""
        if self.replacement is not None:
            return self.replacement if out is None else out.copy_(self.replacement)
        return self.read_stored(out)

    def read_stored(self, out: Tensor | None = None) -> Tensor:
        """Returns the wide values without the replacement."""
        return widened(self.codes, self.scales, self.group, self.dtype, out)

    def replace(self) -> None:
        """Replaces the weight by its own values in wide memory, which the caller may change."""
        self.replacement = self.read_stored(self.replacement)

    def rows(self, numbers: Tensor) -> Tensor:
        """Returns the wide rows [..., K] with these numbers [...]."""
        if self.replacement is not None:
            return F.embedding(numbers, self.replacement)
        flat = numbers.flatten()
        # torch looks up no rows of floats with 8 bits
        codes = self.codes.view(torch.uint8).index_select(0, flat).view(self.codes.dtype)
        scales = None if self.scales is None else self.scales.index_select(0, flat)
        found = widened(codes, scales, self.group, self.dtype)
        return found.view(*numbers.shape, *found.shape[1:])


def wide(weight: Tensor) -> Tensor:
    """Returns the values of a weight, widened if they are stored as 8-bit numbers."""
    return weight.read() if isinstance(weight, QuantisedWeight) else weight


def _wide_in(given: Any) -> Any:
    """Widens the weights among the arguments of a function."""
    if type(given) in (tuple, list):
        return type(given)(map(_wide_in, given))
    if type(given) is dict:
        return {name: _wide_in(one) for name, one in given.items()}
    return wide(given) if isinstance(given, Tensor) else given


def _getters(*names: str) -> set[Callable[..., Any]]:
    return {getattr(Tensor, name).__get__ for name in names}


ITSELF = {Tensor.detach, Tensor.requires_grad_, *_getters("data")}
OF_CODES = _getters("device", "is_cuda", "is_cpu", "is_meta")
OF_OUTLINE = {
    *_getters("shape", "dtype", "ndim", "layout", "requires_grad", "is_leaf", "grad_fn"),
    *(Tensor.size, Tensor.dim, Tensor.stride, Tensor.numel, Tensor.nelement, Tensor.__len__),
    *(Tensor.element_size, Tensor.is_floating_point, Tensor.is_complex, Tensor.is_contiguous),
    Tensor.is_inference,
}
LOOKS_UP = {"padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"}
