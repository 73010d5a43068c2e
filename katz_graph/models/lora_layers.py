"""Adds the LoRAs of a call's rows to the outputs of the layers, at the original weights.

A row differs by rounding only from one with the LoRAs merged into the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from katz_graph.core.errors import RunError
from katz_graph.kernels.row_products import Factors, add_convolutions, add_products
from katz_graph.models.projections import FusedProjections
from katz_graph.models.row_loras import RowLoras
from katz_graph.models.stages import ROW_LORAS, Compute, Outputs


def computed(compute: Compute, module: nn.Module, given: Mapping[str, Any]) -> Outputs:
    """Computes a call that has `RowLoras` among its inputs."""
    loras: RowLoras = given[ROW_LORAS]
    with _added(module, loras):
        return compute(module, {name: one for name, one in given.items() if name != ROW_LORAS})


@contextmanager
def _added(module: nn.Module, loras: RowLoras) -> Iterator[None]:
    """Adds LoRAs to the outputs of a module's layers inside the `with` statement. Layers with a
    fused product are computed one by one.
    """
    if id(module) not in loras.prepared:
        loras.prepared[id(module)] = _replacements(module, loras)
    replaced: Sequence[_Replacement] = loras.prepared[id(module)]
    for one in replaced:
        one.owner.__dict__[one.name] = one.value
    try:
        yield
    finally:
        for one in replaced:
            if one.before is None:
                del one.owner.__dict__[one.name]
            else:
                one.owner.__dict__[one.name] = one.before


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Replaces an attribute of a block: its forward, or its fused projections."""

    owner: nn.Module
    name: str
    value: Any
    before: Any = None  # None: the attribute of the class


def _replacements(module: nn.Module, loras: RowLoras) -> Sequence[_Replacement]:
    layers: dict[str, Any] = {
        name: module.get_submodule(name.rpartition(".")[0]) for name in loras.factors
    }
    fused = [
        _Replacement(block, name, None, one)
        for block in module.modules()
        for name, one in vars(block).items()
        if isinstance(one, FusedProjections)
        and any(one.reads(layer.weight) for layer in layers.values())
    ]
    return [
        *fused,
        *(
            _Replacement(
                layer, "forward", _LayerWithLoras(name, layer, loras.factors[name], loras.rows)
            )
            for name, layer in layers.items()
        ),
    ]


@dataclass(frozen=True, slots=True)
class _LayerWithLoras:
    """Computes a linear layer or convolution, and adds the LoRAs of the rows. `rows`: None if one
    set applies to all.
    """

    name: str
    layer: Any
    factors: Factors
    rows: int | None

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        made: Tensor = type(layer).forward(layer, x)
        if self.rows is not None and len(x) % self.rows:
            raise RunError(f"{self.name}: the input has {len(x)} rows, expected {self.rows}")
        if isinstance(layer, nn.Conv2d):
            add_convolutions(made, x, self.factors, layer.stride, layer.padding, layer.dilation)
        elif self.rows is None or len(x) == self.rows:
            add_products(made, x, self.factors)
        else:  # the tokens of the first row, then those of the next
            tokens = self.rows, -1
            rows = made.view(*tokens, made.shape[-1]), x.reshape(*tokens, x.shape[-1])
            add_products(*rows, self.factors)
        return made


def has_row_loras(layer: nn.Module) -> bool:
    """Returns whether a layer adds LoRAs to rows, so its product must not be computed from its
    weight alone.
    """
    return "forward" in vars(layer)
