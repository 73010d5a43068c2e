"""Describes how to call a family's stock diffusers pipeline like a KSampler, for benches and tests
that compare with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Stock:
    """Describes the calls of a stock pipeline."""

    arguments: Callable[[Tensor, float], dict[str, Any]]
    """Returns the pipeline's arguments for noise [B, C, h, w] and a sampler's guidance."""
    schedule: str = "simple"
    """Scheduler with the same noise levels as the pipeline."""
    told: float | None = None
    """Guidance that the model takes as an input; such models have no negative side."""
    unpacked: Callable[[Tensor, int, int], Tensor] = lambda made, height, width: made
    """Returns the latent [B, C, h, w] from the pipeline's output and the picture's height and
    width.
    """
    euler: Callable[[Any], float] | None = None
    """Replaces a stochastic scheduler by Euler's and returns the factor of the first noise."""
    editing: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Maps the kind of picture that an editing model reads to its pipeline and configuration
    changes.
    """
