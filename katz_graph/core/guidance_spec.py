"""Defines noise, prompts and guidance of a sampler as frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from katz_graph.core.recipe import Conditioning, ModelRecipe


@dataclass(frozen=True, slots=True)
class Noise:
    """Describes the noise added to a latent: drawn from a seed, or none. In both cases, samplers
    draw further noise from the seed.
    """

    seed: int
    drawn: bool = True


@dataclass(frozen=True, slots=True)
class Guider:
    """Selects the predictions to compute and how to combine them.

    Results for positive, middle and negative predictions p, m, n: basic p; cfg n+guidance·(p-n);
    dual n+outer·(m-n)+guidance·(p-m); nested n+outer·(m+guidance·(p-m)-n).
    """

    kind: Literal["basic", "cfg", "dual", "nested"]
    model: ModelRecipe
    positive: Conditioning
    negative: Conditioning = ()
    middle: Conditioning = ()
    guidance: float = 1.0
    outer: float = 1.0

    @property
    def sides(self) -> tuple[str, ...]:
        """Returns the names of the conditionings in use, the positive first."""
        return {"basic": ("positive",), "cfg": ("positive", "negative")}.get(
            self.kind, ("positive", "middle", "negative")
        )
