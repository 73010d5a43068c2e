"""Provides data N(MEAN, SPREAD²), whose denoiser and exact solutions are known, and the loop that
runs a sampler on it.

denoised(x, σ) = MEAN + s² / (s² + σ²) (x - MEAN), and the flow conserves (x - MEAN) / sqrt(s² +
σ²).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from katz_graph.sampling.samplers import BoundSampler
from katz_graph.sampling.solvers.solving import NoiseSource

MEAN, SPREAD = 0.3, 0.5
Denoiser = Callable[[Tensor, Tensor], Tensor]


def gaussian_denoiser(x: Tensor, sigma: Tensor) -> Tensor:
    return MEAN + SPREAD**2 / (SPREAD**2 + sigma**2) * (x - MEAN)


def flowed(x: float, sigma: float, sigma_end: float) -> float:
    """Returns the exact solution."""
    return MEAN + (x - MEAN) * math.sqrt((SPREAD**2 + sigma_end**2) / (SPREAD**2 + sigma**2))


def fresh_noise(x: Tensor, seed: int = 0) -> NoiseSource:
    """Returns independent noise in x's dtype, whatever the interval."""
    generator = torch.Generator().manual_seed(seed)
    return lambda sigma, sigma_next: torch.randn(x.shape, generator=generator, dtype=x.dtype)


def solve(
    sampler: BoundSampler,
    x: Tensor,
    sigmas: Tensor,
    denoiser: Denoiser = gaussian_denoiser,
    noise: NoiseSource | None = None,
) -> Tensor:
    solving = sampler(x, sigmas, noise or fresh_noise(x))
    try:
        query = next(solving)
        while True:
            query = solving.send(denoiser(query.x, query.sigma))
    except StopIteration as finished:
        result: Tensor = finished.value
        return result


def karras(first: float, last: float, steps: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Returns [steps + 1] levels from `first` to `last`."""
    return torch.linspace(first ** (1 / 7), last ** (1 / 7), steps + 1, dtype=dtype) ** 7
