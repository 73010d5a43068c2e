"""Defines the work of a stage's call by transformer layer, and formulas of it. Must not know
models; never imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from katz_graph.ir.device import Work
from katz_graph.models.costs.formula import LEVELS, PRIMES, Formula, Terms, sizes, value

ACTIVE = (5003, 5077, 5011, 5021, 5023)  # primes: active tokens of each resolution


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Counts the work of a transformer layer, and of the rest of the call since the layer before.
    `cached`: the layer computes the active tokens only and reads the others.
    """

    name: str  # as in `ir.values.CachedActivations`
    tokens: int  # N of the layer's output [B, N, D]
    width: int  # D
    before: Work
    full: Work
    cached: Work


@dataclass(frozen=True, slots=True)
class LayeredWork:
    """Counts the work of a call in its order: the layers, and what follows the last one."""

    layers: tuple[LayerWork, ...]
    after: Work


def layer_sizes(height: int, width: int, tokens: int, active: Mapping[int, int]) -> dict[str, int]:
    """Returns `sizes` of one row, and the active tokens of each resolution. active: by number of
    tokens; others are all active. `joint_active`: tokens of text plus active patches of 2 x 2; at
    the primes, two times a prime.
    """
    found = sizes(1, height, width, tokens)
    for level in range(LEVELS):
        every = found[f"h{level}"] * found[f"w{level}"]
        found[f"active{level}"] = active.get(every, every)
    return found | {"joint_active": tokens + found["active1"]}


AT_PRIMES = layer_sizes(
    PRIMES["h0"],
    PRIMES["w0"],
    PRIMES["tokens"],
    {PRIMES[f"h{level}"] * PRIMES[f"w{level}"]: number for level, number in enumerate(ACTIVE)},
)
LAYER_PRIMES: Mapping[str, int] = {name: size for name, size in AT_PRIMES.items() if size > 1}


@dataclass(frozen=True, slots=True)
class LayerFormula:
    """Computes a `LayerWork`."""

    name: str
    tokens: Terms
    width: int
    before: Formula
    full: Formula
    cached: Formula

    @classmethod
    def of(cls, before: Any, full: Any, cached: Any, **rest: Any) -> Self:
        """Makes a formula from plain data."""
        return cls(before=Formula(**before), full=Formula(**full), cached=Formula(**cached), **rest)

    def work(self, at: Mapping[str, int], rows: int, value_bytes: int) -> LayerWork:
        works = (
            one.work(at, value_bytes).batched(rows) for one in (self.before, self.full, self.cached)
        )
        return LayerWork(self.name, value(self.tokens, at), self.width, *works)


@dataclass(frozen=True, slots=True)
class LayeredFormula:
    """Computes a `LayeredWork` from counts of one row. Prepared blocks take some layers row by row,
    so counts of several rows would not be products of sizes.
    """

    layers: tuple[LayerFormula, ...]
    after: Formula

    def work(self, at: Mapping[str, int], rows: int, value_bytes: int) -> LayeredWork:
        """Returns the work at `layer_sizes`, for a dtype of `value_bytes`."""
        layers = tuple(layer.work(at, rows, value_bytes) for layer in self.layers)
        return LayeredWork(layers, self.after.work(at, value_bytes).batched(rows))

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parses the output of `text`; None for other strings."""
        try:
            read: dict[str, Any] = json.loads(text)
            layers = tuple(LayerFormula.of(**layer) for layer in read["layers"])
            return cls(layers, Formula(**read["after"]))
        except (KeyError, TypeError, ValueError):
            return None
