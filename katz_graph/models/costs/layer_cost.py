"""Counts a stage's work by transformer layer on torch's meta device, for all tokens and for the
active tokens of an edit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from katz_graph.ir.values import CachedActivations
from katz_graph.models.active import Active, Layers
from katz_graph.models.costs.formula import BATCH, HEIGHT, TOKENS, WIDTH, Terms, terms
from katz_graph.models.costs.layers import (
    LAYER_PRIMES,
    LayeredFormula,
    LayeredWork,
    LayerFormula,
)
from katz_graph.models.costs.stage_cost import (
    Counted,
    Functions,
    FusedAttention,
    Operations,
    built_on_meta,
    formula_of,
)
from katz_graph.models.prepare import prepare
from katz_graph.models.stage_registry import stage as declared
from katz_graph.models.stages import Sized

Summed = Callable[[Iterable[int]], Terms]


def layered_formula(
    config: str, stage: str, first_block: int, last_block: int | None
) -> LayeredFormula:
    """Derives a stage's formula by layer for the module with this `config.json`. Valid unless a
    resolution is one cell wide or high.
    """
    sizes = Sized(BATCH, HEIGHT, WIDTH, TOKENS, first_block, last_block)
    levels = [name.removeprefix("active") for name in LAYER_PRIMES if name.startswith("active")]
    active = {
        LAYER_PRIMES[f"h{level}"] * LAYER_PRIMES[f"w{level}"]: LAYER_PRIMES[f"active{level}"]
        for level in levels
    }
    summed = partial(terms, primes=LAYER_PRIMES)
    return _layered(_prepared_on_meta(config), stage, sizes, active, summed)


def layered_work(
    config: Mapping[str, Any],
    stage: str,
    sizes: Sized,
    active: Mapping[int, int],
    value_bytes: int = 4,
) -> LayeredWork:
    """Counts the work of one call by layer, at these sizes. active: by number of tokens of a layer
    the number of active ones; layers of other numbers compute all.
    """
    module = _prepared_on_meta(json.dumps(dict(config), sort_keys=True))
    formula = _layered(module, stage, sizes, active, lambda numbers: {"": sum(numbers)})
    return formula.work({}, value_bytes)


@lru_cache(maxsize=4)
def _prepared_on_meta(config: str) -> Any:
    """Builds a module of prepared blocks, which compute active tokens. The module is cached."""
    module = built_on_meta(config)
    prepare(module)
    return module


def _layered(
    module: Any, stage: str, sizes: Sized, active: Mapping[int, int], summed: Summed
) -> LayeredFormula:
    full = _counted(module, stage, sizes, None)
    shapes = {name: output.shape for name, output in full.outputs.items()}
    positions = {
        tokens: torch.empty(
            sizes.batch, active.get(tokens, tokens), dtype=torch.int64, device="meta"
        )
        for _, tokens, _ in shapes.values()
    }
    cached = _counted(module, stage, sizes, CachedActivations(positions, full.outputs))
    layers = [
        LayerFormula(
            name,
            summed([tokens]),
            width,
            formula_of(before, summed),
            formula_of(whole, summed),
            formula_of(part, summed),
        )
        for (name, (_, tokens, width)), before, whole, part in zip(
            shapes.items(), full.parts[0:-1:2], full.parts[1::2], cached.parts[1::2], strict=True
        )
    ]
    return LayeredFormula(tuple(layers), formula_of(full.parts[-1], summed))


@dataclass(frozen=True, slots=True)
class _CountedParts:
    outputs: Mapping[str, Tensor]  # by layer: its output [B, N, D]
    parts: tuple[Counted, ...]  # by turns the rest of the call and a layer, in order


@torch.inference_mode(False)  # inference mode does not dispatch linear layers as products
def _counted(
    module: Any, stage: str, sizes: Sized, activations: CachedActivations | None
) -> _CountedParts:
    counter, outputs = _Counter(), dict[str, Tensor]()
    layers = _CountedLayers(activations, outputs, counter)
    with torch.no_grad(), FusedAttention():
        call, _ = declared(stage).sized(module, replace(sizes, layers=layers))
    with torch.no_grad(), counter.operations, counter.functions:
        call()
    counter.mark()
    return _CountedParts(outputs, tuple(counter.parts()))


@dataclass(frozen=True, slots=True)
class _Mark:
    """Holds the numbers of counts at one moment."""

    flops: int = 0
    attentions: int = 0
    written: int = 0
    copied: int = 0
    kernels: int = 0
    parameters: int = 0


class _Counter:
    """Counts a call, and its parts between marks."""

    def __init__(self) -> None:
        self.operations = Operations()
        self.functions = _ParameterFunctions(self.operations)
        self._marks = [_Mark()]

    def mark(self) -> None:
        operations, functions = self.operations, self.functions
        self._marks.append(
            _Mark(
                len(operations.flops),
                len(functions.flops),
                len(operations.written),
                len(operations.copied),
                operations.kernels,
                len(functions.parameters),
            )
        )

    def parts(self) -> Iterable[Counted]:
        operations, functions = self.operations, self.functions
        for one, other in pairwise(self._marks):
            parameters = dict.fromkeys(functions.parameters[one.parameters : other.parameters])
            yield Counted(
                flops=(
                    *operations.flops[one.flops : other.flops],
                    *functions.flops[one.attentions : other.attentions],
                ),
                written=operations.written[one.written : other.written],
                copied=operations.copied[one.copied : other.copied],
                outputs=(),
                weight_bytes=sum(parameter.nbytes for parameter in parameters),
                kernels=other.kernels - one.kernels,
            )


@dataclass(frozen=True, slots=True, eq=False)
class _CountedLayers(Layers):
    """Marks the begin and the end of every layer."""

    counter: _Counter = field(default_factory=_Counter)

    def active(self, name: str, tokens: int) -> Active | None:
        self.counter.mark()
        return Layers.active(self, name, tokens)

    def collect(self, name: str, output: Tensor) -> None:
        self.counter.mark()
        Layers.collect(self, name, output)


class _ParameterFunctions(Functions):
    """Also lists the parameters that functions read."""

    def __init__(self, operations: Operations) -> None:
        super().__init__(operations)
        self.parameters: list[nn.Parameter] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.parameters += [
            leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, nn.Parameter)
        ]
        return super().__torch_function__(function, types, args, kwargs)
