"""Counts a stage's work by transformer layer on torch's meta device, for all tokens and for the
active tokens of an edit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from katz_graph.ir.values import CachedActivations
from katz_graph.models.active import Active, Layers
from katz_graph.models.costs.formula import HEIGHT, TOKENS, WIDTH, Terms, terms
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
    sizes = Sized(1, HEIGHT, WIDTH, TOKENS, first_block, last_block)
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
    one = replace(sizes, batch=1)
    formula = _layered(module, stage, one, active, lambda numbers: {"": sum(numbers)})
    return formula.work({"batch": 1}, sizes.batch, value_bytes)


@lru_cache(maxsize=4)
def _prepared_on_meta(config: str) -> Any:
    """Builds a module of prepared blocks, which compute active tokens. The module is cached."""
    module = built_on_meta(config)
    prepare(module)
    return module


@torch.inference_mode(False)  # inference mode does not dispatch linear layers as products
def _layered(
    module: Any, stage: str, sizes: Sized, active: Mapping[int, int], summed: Summed
) -> LayeredFormula:
    layers = _CountedLayers()
    # `Operations` caches results on the meta device
    with torch.no_grad(), Operations(), FusedAttention():
        call, _ = declared(stage).sized(module, replace(sizes, layers=layers))
    outputs, parts = layers.count(call, None)
    positions = {
        tokens: torch.empty(
            sizes.batch, active.get(tokens, tokens), dtype=torch.int64, device="meta"
        )
        for _, tokens, _ in (output.shape for output in outputs.values())
    }
    _, cached = layers.count(call, CachedActivations(positions, outputs))
    found = [
        LayerFormula(
            name,
            summed([output.shape[1]]),
            output.shape[2],
            formula_of(before, summed),
            formula_of(whole, summed),
            formula_of(part, summed),
        )
        for (name, output), before, whole, part in zip(
            outputs.items(), parts[:-1:2], parts[1::2], cached[1::2], strict=True
        )
    ]
    return LayeredFormula(tuple(found), formula_of(parts[-1], summed))


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
        self._operations = Operations()
        self._functions = _ParameterFunctions(self._operations)
        self._marks = [_Mark()]

    def count(self, call: Callable[[], object]) -> None:
        with torch.no_grad(), self._operations, self._functions:
            call()
        self.mark()

    def mark(self) -> None:
        operations, functions = self._operations, self._functions
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

    def parts(self) -> Iterator[Counted]:
        operations, functions = self._operations, self._functions
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


@dataclass(slots=True)
class _Counting:
    """Holds a call that is being counted."""

    layers: Layers = field(default_factory=Layers)
    counter: _Counter = field(default_factory=_Counter)


@dataclass(frozen=True, slots=True, eq=False)
class _CountedLayers(Layers):
    """Counts calls by layer."""

    now: _Counting = field(default_factory=_Counting)

    def count(
        self, call: Callable[[], object], activations: CachedActivations | None
    ) -> tuple[Mapping[str, Tensor], Sequence[Counted]]:
        """Returns the outputs [B, N, D] of a call's layers, and counts: by turns those of the rest
        of the call and those of a layer, in order.
        """
        outputs: dict[str, Tensor] = {}
        self.now.layers, self.now.counter = Layers(activations, outputs), _Counter()
        self.now.counter.count(call)
        return outputs, tuple(self.now.counter.parts())

    def active(self, name: str, tokens: int) -> Active | None:
        self.now.counter.mark()
        return self.now.layers.active(name, tokens)

    def collect(self, name: str, output: Tensor) -> None:
        self.now.counter.mark()
        self.now.layers.collect(name, output)


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
