"""Applies the methods of adapter files to weights and biases: LoRA (Hu et al. 2021), LoHa
(Hyeon-Woo et al. 2022) and LoKr (Yeh et al. 2024), each also in Tucker form, whole differences, and
DoRA (Liu et al. 2024) over any of them.

Knows tensors only, not names in files or modules.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

ALL = slice(None)
MAGNITUDES = ("dora_scale", "lora_magnitude_vector")
Cut = Callable[[Tensor], Tensor]
"""Returns some rows of a tensor, in the order of the target."""
Scaling = Callable[[int], float]
"""Returns the scale of a product by its rank; the rank is 0 if all factors are whole."""


class Method(ABC):
    """Changes a weight or bias of a module by one file. Frozen; copies share tensors."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Returns the common name of the method."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Returns the rank, 0 for a method without one."""

    @property
    @abstractmethod
    def shape(self) -> list[int]:
        """Returns the shape of the target weight or bias; [out, n] also fits a weight [out, ...]
        with n values per output.
        """

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Returns all tensors of the method."""
        return _tensors(self)

    @property
    def by_rows(self) -> bool:
        """Returns whether rows of the weight (first axis) can be computed independently."""
        return True

    @abstractmethod
    def cut(self, rows: Cut) -> Method:
        """Returns the method restricted to some rows of the weight. Raises ValueError if these rows
        depend on others.
        """

    def fits(self, shape: Sequence[int]) -> bool:
        """Returns whether the method fits a weight of this shape. Linear layers fit 1x1
        convolutions, and vice versa.
        """
        flat = [shape[0], math.prod(shape[1:])]
        return _without_ones(self.shape) == _without_ones(shape) or self.shape == flat

    @abstractmethod
    def add_to(self, total: Tensor, strength: float, rows: slice = ALL) -> None:
        """Changes `total` in place: the `rows` of the weight after all earlier methods, contiguous,
        float32, on the computing device.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """Holds the factors of a low-rank matrix; with a core, of a convolution in Tucker form."""

    left: Tensor  # [out, r]
    right: Tensor  # [r, in] or [r, in, kh, kw]
    core: Tensor | None = None  # [r, r, kh, kw], with `right` [r, in]

    def __post_init__(self) -> None:
        sound = (
            self.left.ndim == 2
            and self.right.ndim in (2, 4)
            and self.left.shape[1] == self.right.shape[0] != 0
        )
        if self.core is not None:
            square = self.core.ndim == 4 and self.core.shape[0] == self.core.shape[1]
            sound &= square and self.right.ndim == 2 and self.core.shape[0] == self.rank
        if not sound:
            shapes = " and ".join(str(list(tensor.shape)) for tensor in _tensors(self))
            raise ValueError(f"has factors of shape {shapes} that do not form a weight")

    @property
    def rank(self) -> int:
        return self.right.shape[0]

    @property
    def shape(self) -> list[int]:
        kernel = self.right.shape[2:] if self.core is None else self.core.shape[2:]
        return [self.left.shape[0], self.right.shape[1], *kernel]

    def cut(self, rows: Cut) -> Product:
        """Returns some rows of the matrix, by cutting its left factor."""
        return replace(self, left=rows(self.left))

    def factors(self, device: torch.device, rows: slice = ALL) -> tuple[Tensor, Tensor]:
        """Returns two float32 matrices, [rows, r] and [r, in · kh · kw]. Their product is the
        weight's rows, flattened.
        """
        left = self.left if rows is ALL else self.left[rows]
        left, right = _floats(left, device), _floats(self.right, device)
        if self.core is not None:
            right = torch.einsum("ijk,jn->ink", _floats(self.core, device).flatten(2), right)
        return left, right if right.ndim == 2 else right.flatten(1)


Factor = Product | Tensor
"""A matrix or convolution weight, factored or whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Lora(Method):
    """Adds strength · scale · B A; LoCon in Tucker form has a core between B and A."""

    product: Product
    scale: float  # alpha / rank

    @property
    def name(self) -> str:
        return "LoRA" if self.product.core is None else "LoCon in Tucker form"

    @property
    def rank(self) -> int:
        return self.product.rank

    @property
    def shape(self) -> list[int]:
        return self.product.shape

    def cut(self, rows: Cut) -> Lora:
        return replace(self, product=self.product.cut(rows))

    def add_to(self, total: Tensor, strength: float, rows: slice = ALL) -> None:
        up, down = self.product.factors(total.device, rows)
        # rounds after each operation, as diffusers does: bit-equal weights
        _matrix(total).add_(torch.mm(up, down).mul_(strength * self.scale))


@dataclass(frozen=True, slots=True, eq=False)
class Loha(Method):
    """Adds strength · scale · (A₁ B₁) ⊙ (A₂ B₂)."""

    first: Product
    second: Product
    scale: float

    def __post_init__(self) -> None:
        if self.first.shape != self.second.shape:
            raise ValueError(
                f"has factors of shape {self.first.shape} and {self.second.shape} that do not "
                "form a weight"
            )

    @property
    def name(self) -> str:
        return "LoHa"

    @property
    def rank(self) -> int:
        return self.first.rank

    @property
    def shape(self) -> list[int]:
        return self.first.shape

    def cut(self, rows: Cut) -> Loha:
        return replace(self, first=self.first.cut(rows), second=self.second.cut(rows))

    def add_to(self, total: Tensor, strength: float, rows: slice = ALL) -> None:
        first, second = (
            torch.mm(*product.factors(total.device, rows)) for product in (self.first, self.second)
        )
        _matrix(total).addcmul_(first, second, value=strength * self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class Lokr(Method):
    """Adds strength · scale · W₁ ⊗ W₂, the Kronecker product, or some of its rows. Only W₂ may have
    a kernel.
    """

    first: Factor  # [a, c]
    second: Factor  # [b, d] or [b, d, kh, kw]: the weight is [a · b, c · d, kh, kw]
    scale: float
    taken: Tensor | None = None  # row numbers of the product; None: all rows

    def __post_init__(self) -> None:
        first, second = list(self.first.shape), list(self.second.shape)
        if len(first) != 2 or len(second) not in (2, 4) or 0 in (*first, *second):
            raise ValueError(f"has factors of shape {first} and {second} that do not form a weight")

    @property
    def name(self) -> str:
        return "LoKr"

    @property
    def rank(self) -> int:
        return next(
            (part.rank for part in (self.second, self.first) if isinstance(part, Product)), 0
        )

    @property
    def shape(self) -> list[int]:
        (a, c), (b, d, *kernel) = self.first.shape, self.second.shape
        return [a * b if self.taken is None else len(self.taken), c * d, *kernel]

    def cut(self, rows: Cut) -> Lokr:
        return replace(self, taken=rows(self._rows(torch.device("cpu"))))

    def _rows(self, device: torch.device) -> Tensor:
        """Returns the row numbers of the product to add."""
        if self.taken is None:
            return torch.arange(self.shape[0], device=device)
        return self.taken.to(device)

    def add_to(self, total: Tensor, strength: float, rows: slice = ALL) -> None:
        first, second = (_whole(part, total.device) for part in (self.first, self.second))
        row = self._rows(total.device)[rows]
        left, right = first[row // len(second)], second[row % len(second)]
        total.view(len(row), first.shape[1], second.shape[1]).addcmul_(
            left[:, :, None], right[:, None], value=strength * self.scale
        )


@dataclass(frozen=True, slots=True, eq=False)
class Difference(Method):
    """Adds strength · scale · a whole difference to a weight or a bias."""

    difference: Tensor
    scale: float = 1.0

    @property
    def name(self) -> str:
        return "difference"

    @property
    def rank(self) -> int:
        return 0

    @property
    def shape(self) -> list[int]:
        return list(self.difference.shape)

    def cut(self, rows: Cut) -> Difference:
        return replace(self, difference=rows(self.difference))

    def add_to(self, total: Tensor, strength: float, rows: slice = ALL) -> None:
        difference = _floats(self.difference[rows], total.device)
        total.add_(difference.view_as(total), alpha=strength * self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class Dora(Method):
    """Moves the weight W by strength · (m · V / ‖V‖ − W). V is W plus the inner method's change at
    strength 1. Strength 1 is section 4.1 of the paper, strength 0 leaves W unchanged.

    Norms are over all axes except the axis of the magnitude m.
    """

    inner: Method
    magnitude: Tensor  # [out] or [in]
    of_outputs: bool

    def __post_init__(self) -> None:
        axis, values = self._axis(), len(self.magnitude)
        # a flattened convolution has its kernel on the input axis
        whole = values and len(self.shape) > axis and self.shape[axis] % values == 0
        if not whole or (self.of_outputs and self.shape[0] != values):
            raise ValueError(
                f"has a magnitude of {values} values for a weight of shape {self.shape}"
            )

    @property
    def name(self) -> str:
        return f"DoRA over {self.inner.name}"

    @property
    def rank(self) -> int:
        return self.inner.rank

    @property
    def shape(self) -> list[int]:
        return self.inner.shape

    @property
    def by_rows(self) -> bool:
        return self.of_outputs and self.inner.by_rows

    def cut(self, rows: Cut) -> Dora:
        if not self.of_outputs:
            raise ValueError("is DoRA over inputs, which needs all rows of a fused weight")
        return Dora(self.inner.cut(rows), rows(self.magnitude), True)

    def fits(self, shape: Sequence[int]) -> bool:
        return self.inner.fits(shape) and len(self.magnitude) == shape[self._axis()]

    def _axis(self) -> int:
        return 0 if self.of_outputs else 1

    def add_to(self, total: Tensor, strength: float, rows: slice = ALL) -> None:
        axis, moved = self._axis(), total.clone()
        self.inner.add_to(moved, 1.0, rows)
        others = [other for other in range(total.ndim) if other != axis]
        norms = torch.linalg.vector_norm(moved, dim=others, keepdim=True)
        magnitude = self.magnitude[rows] if self.of_outputs else self.magnitude
        factors = _floats(magnitude, total.device).view(norms.shape)
        # zeros have no direction and stay zero
        moved *= factors / norms.clamp_min(torch.finfo(norms.dtype).tiny)
        total.lerp_(moved, strength)


def methods(entry: Mapping[str, Tensor], scaling: Scaling) -> dict[str, Method]:
    """Builds a file's methods for one module, by parameter: `weight`, `bias`. `entry`: the module's
    tensors, by the names in `FORMS`, and optionally a magnitude.

    Raises ValueError if the tensors form no method or belong to several.
    """
    magnitude = next((name for name in MAGNITUDES if name in entry), None)
    made = {}
    for parameter, forms in FORMS.items():
        given = frozenset(name for form in forms for name in form if name in entry)
        if given or (parameter == "weight" and magnitude is not None):
            made[parameter] = _form(forms, given)(entry, scaling)
    if magnitude is not None:
        made["weight"] = _dora(made["weight"], entry[magnitude], magnitude)
    return made


Make = Callable[[Mapping[str, Tensor], Scaling], Method]


def _form(forms: Mapping[frozenset[str], Make], given: frozenset[str]) -> Make:
    """Returns the constructor of the method with exactly the given tensors."""
    if given in forms:
        return forms[given]
    whole = next((form for form in forms if given < form), None)
    if whole is None:
        raise ValueError(f"has tensors of several methods: {', '.join(sorted(given))}")
    raise ValueError(f"has no {min(whole - given)}: the file is incomplete")


def _lora(entry: Mapping[str, Tensor], scaling: Scaling) -> Method:
    left, right, core = _bare(entry["lora_B"]), entry["lora_A"], entry.get("lora_mid")
    product = Product(left, right if core is None else _bare(right), core)
    return Lora(product, scaling(product.rank))


def _loha(entry: Mapping[str, Tensor], scaling: Scaling) -> Method:
    first, second = (
        _product(entry, f"hada_w{half}_a", f"hada_w{half}_b", f"hada_t{half}") for half in (1, 2)
    )
    return Loha(first, second, scaling(first.rank))


def _lokr(entry: Mapping[str, Tensor], scaling: Scaling) -> Method:
    first, second = (
        entry[f"lokr_w{half}"]
        if f"lokr_w{half}" in entry
        else _product(entry, f"lokr_w{half}_a", f"lokr_w{half}_b", f"lokr_t{half}")
        for half in (1, 2)
    )
    unscaled = Lokr(first, second, 1.0)
    return Lokr(first, second, scaling(unscaled.rank))


def _lora_bias(entry: Mapping[str, Tensor], scaling: Scaling) -> Method:
    if "lora_B" not in entry:
        raise ValueError("has no lora_B: the file is incomplete")
    return Difference(entry["lora_B.bias"], scaling(entry["lora_B"].shape[1]))


def _whole_difference(name: str) -> Make:
    return lambda entry, scaling: Difference(entry[name])


def _product(entry: Mapping[str, Tensor], left: str, right: str, core: str) -> Product:
    """Builds a product from LyCORIS' factors; in Tucker form the left one is [r, out]."""
    a, b = entry[left], entry[right]
    return Product(a.transpose(0, -1), b, entry[core]) if core in entry else Product(a, b)


def _dora(inner: Method, magnitude: Tensor, name: str) -> Method:
    """Wraps a method in DoRA. PEFT's magnitudes are per output; for others, shapes decide."""
    outputs = name == "lora_magnitude_vector" or list(magnitude.shape[:1]) == inner.shape[:1]
    return Dora(inner, magnitude.flatten(), outputs)


FORMS: Mapping[str, Mapping[frozenset[str], Make]] = {
    "weight": {
        frozenset({"lora_A", "lora_B"}): _lora,
        frozenset({"lora_A", "lora_B", "lora_mid"}): _lora,
        frozenset({"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}): _loha,
        frozenset(
            {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2"}
        ): _loha,
        **{
            first | second: _lokr
            for first in (frozenset({"lokr_w1"}), frozenset({"lokr_w1_a", "lokr_w1_b"}))
            for second in (
                frozenset({"lokr_w2"}),
                frozenset({"lokr_w2_a", "lokr_w2_b"}),
                frozenset({"lokr_w2_a", "lokr_w2_b", "lokr_t2"}),
            )
        },
        frozenset({"diff"}): _whole_difference("diff"),
        frozenset({"w_norm"}): _whole_difference("w_norm"),
    },
    "bias": {
        frozenset({"lora_B.bias"}): _lora_bias,
        frozenset({"diff_b"}): _whole_difference("diff_b"),
        frozenset({"b_norm"}): _whole_difference("b_norm"),
    },
}
"""Maps parameters to the sets of tensors that form a method, and each set to its constructor."""


def _bare(tensor: Tensor) -> Tensor:
    """Drops the kernel of a 1x1 convolution."""
    return tensor.flatten(1) if tensor.ndim == 4 and tensor.shape[2:].numel() == 1 else tensor


def _without_ones(shape: Sequence[int]) -> list[int]:
    """Drops the kernel of a 1x1 convolution from its shape."""
    return list(shape[:2] if all(side == 1 for side in shape[2:]) else shape)


def _matrix(total: Tensor) -> Tensor:
    return total if total.ndim == 2 else total.view(len(total), math.prod(total.shape[1:]))


def _whole(part: Factor, device: torch.device) -> Tensor:
    if isinstance(part, Product):
        return torch.mm(*part.factors(device))
    return _floats(part, device).flatten(1)


def _floats(tensor: Tensor, device: torch.device) -> Tensor:
    """Copies a tensor to the device in its smaller dtype, then converts it to float32."""
    if tensor.dtype == torch.float32 and tensor.device == device:
        return tensor
    return tensor.to(device, non_blocking=True).to(torch.float32)


def _tensors(holder: Any) -> tuple[Tensor, ...]:
    values = [getattr(holder, field.name) for field in fields(holder)]
    return tuple(
        tensor
        for value in values
        if isinstance(value, (Tensor, Product, Method))
        for tensor in ((value,) if isinstance(value, Tensor) else _tensors(value))
    )
