"""Defines as frozen data the noise, the prompts, and the guidance that combines their
predictions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from katz_graph.core.recipe import Conditioning, ModelRecipe


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise that a latent gets: the draws of a seed, or nothing. Samplers draw their own noise
    from the seed either way.
    """

    seed: int
    drawn: bool = True


@dataclass(frozen=True, slots=True)
class Guider:
    """Selects the prompts that a model is asked for.

    basic: the positive alone. cfg: positive against negative by `guidance`. dual: middle against
    negative by `outer`, and on top of it positive against middle by `guidance`. nested: positive
    against middle by `guidance`, and that against negative by `outer`.
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
        """Returns the names of the conditionings that it has, the positive first."""
        return {"basic": ("positive",), "cfg": ("positive", "negative")}.get(
            self.kind, ("positive", "middle", "negative")
        )
