"""Describes how diffusers' stock pipeline of a family is asked as a KSampler is: what benches and
tests compare with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Stock:
    """Describes the calls of a stock pipeline.

    `arguments` returns what it is given for noise [B, C, h, w] and a sampler's guidance.
    `schedule`: whose levels are its own. `told`: the guidance that models are told, which then have
    no negative side. `unpacked` makes a latent [B, C, h, w] of what the pipeline gives; it also
    takes the picture's height and width. `euler` puts Euler's scheduler in place of one that draws
    noise, and returns the factor of the first noise. `editing`: of models that are shown a picture
    themselves; maps what it is to them to their pipeline and to what their configuration has.
    """

    arguments: Callable[[Tensor, float], dict[str, Any]]
    schedule: str = "simple"
    told: float | None = None
    unpacked: Callable[[Tensor, int, int], Tensor] = lambda made, height, width: made
    euler: Callable[[Any], float] | None = None
    editing: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
