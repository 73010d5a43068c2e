"""Defines noise, prompts and guidance of a sampler as frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from katz_graph.core.recipe import Conditioning, ModelRecipe


@dataclass(frozen=True, slots=True)
class Noise:
    """Describes the noise added to a latent: drawn from a seed, or none. Samplers that draw their
    own noise use the seed either way.
    """

    seed: int
    drawn: bool = True


@dataclass(frozen=True, slots=True)
class Guider:
    """Selects the predictions to compute and how to combine them.

    basic: positive only. cfg: positive against negative by `guidance`. dual: middle against
    negative by `outer`, plus positive against middle by `guidance`. nested: positive against middle
    by `guidance`, and the result against negative by `outer`.
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
        """Returns the names of its conditionings, the positive first."""
        return {"basic": ("positive",), "cfg": ("positive", "negative")}.get(
            self.kind, ("positive", "middle", "negative")
        )
