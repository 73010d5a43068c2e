"""Finds samplers by name, with options, noise source and valid levels. Must not know models."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pkgutil import resolve_name

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.ir.values import Evaluation
from katz_graph.sampling.names import SAMPLERS, SamplerChoice, SamplerEntry, require_sampler
from katz_graph.sampling.noise import AncestralNoise, BrownianNoise
from katz_graph.sampling.path import Path
from katz_graph.sampling.solvers.solving import NoiseSource, Sampler, Solving

BoundSampler = Callable[[Tensor, Tensor, NoiseSource], Solving]
"""Maps (x, sigmas [N + 1], noise) like a `Sampler`, with options and path bound."""


@dataclass(frozen=True, slots=True)
class Solver:
    """Holds a sampler bound to options and path, and its entry in `SAMPLERS`."""

    sampler: BoundSampler
    entry: SamplerEntry

    def noise_source(
        self, shape: Sequence[int], seed: int, sigmas: Tensor, device: torch.device | str
    ) -> NoiseSource:
        """Returns the source of noise between steps. `sigmas` [N + 1], at least one positive."""
        if self.entry.noise == "brownian":
            return BrownianNoise(shape, seed, sigmas, device)
        return AncestralNoise(shape, seed, device)


def solver_of(choice: SamplerChoice, sigmas: Sequence[float], path: Path) -> Solver:
    """Returns the chosen sampler with its options, for these levels of a path.

    Raises InputError for a sampler that is not implemented, an unknown option, and levels that the
    sampler cannot use.
    """
    require_sampler(choice.name)
    entry = SAMPLERS[choice.name.removesuffix("_gpu")]
    sampler: Sampler = resolve_name(f"katz_graph.sampling.solvers.{entry.function}")
    parameters = inspect.signature(sampler).parameters.values()
    known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    for name, _ in choice.options:
        if name not in known:
            raise InputError(
                f"sampler {choice.name!r} has no option {name!r}; it has "
                f"{', '.join(known) or 'none'}"
            )
    _require_levels(choice.name, entry, sigmas)
    path.check(sigmas)
    return Solver(partial(sampler, path=path, **{**entry.options, **dict(choice.options)}), entry)


def evaluations(sampler: BoundSampler, sigmas: Sequence[float]) -> tuple[Evaluation, ...]:
    """Lists a sampler's evaluations by running it on scalars. This works because no sampler
    branches on values of x.
    """
    zero = torch.zeros(())
    solving = sampler(
        zero, torch.tensor(sigmas, dtype=torch.float32), lambda sigma, sigma_next: zero
    )
    asked: list[Evaluation] = []
    try:
        query = next(solving)
        while True:
            asked.append(Evaluation(len(asked), query.step, float(query.sigma)))
            query = solving.send(zero)
    except StopIteration:
        return tuple(asked)


def _require_levels(name: str, entry: SamplerEntry, sigmas: Sequence[float]) -> None:
    if not all(math.isfinite(sigma) and sigma >= 0 for sigma in sigmas):
        raise InputError(
            f"sigmas: expected finite numbers that are not negative, got {_listed(sigmas)}"
        )
    if 0 in sigmas[:-1]:
        raise InputError(f"sigmas: 0 (no noise) can only be the last value, got {_listed(sigmas)}")
    if entry.noise != "none" and any(sigma < sigma_next for sigma, sigma_next in pairwise(sigmas)):
        raise InputError(
            f"sampler {name!r} adds noise, so its sigmas must decrease, got {_listed(sigmas)}; "
            "choose one without noise, such as euler"
        )
    if entry.divides and any(sigma == sigma_next for sigma, sigma_next in pairwise(sigmas)):
        raise InputError(
            f"sampler {name!r} cannot take two equal sigmas in a row, got {_listed(sigmas)}"
        )


def _listed(sigmas: Sequence[float]) -> str:
    return ", ".join(f"{sigma:g}" for sigma in sigmas)
