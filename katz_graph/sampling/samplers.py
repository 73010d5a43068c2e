"""Solvers of the diffusion equation, each in the loop form of its paper. A sampler is a generator: it yields the point to evaluate and
is sent the denoised picture there, so that it is a definition and one request's state at once. Knows nothing about models."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from katz_graph.sampling.evaluation import Evaluation, Query

NoiseSource = Callable[[Tensor, Tensor], Tensor]
"""(sigma, next sigma) -> unit noise of x's shape for that interval."""

Solving = Generator[Query, Tensor, Tensor]
Sampler = Callable[[Tensor, Tensor, NoiseSource], Solving]
"""(x, sigmas [N + 1] descending, noise) -> a generator that asks for N or more evaluations and returns the final x."""


def euler(x: Tensor, sigmas: Tensor, noise: NoiseSource) -> Solving:
    """x' = x + (σ' - σ) d with d = (x - denoised) / σ (Karras et al. 2022, algorithm 1). DDIM without noise is the same."""
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        x = x + _slope(x, sigma, denoised) * (sigma_next - sigma)
    return x


def euler_ancestral(x: Tensor, sigmas: Tensor, noise: NoiseSource, eta: float = 1.0, s_noise: float = 1.0) -> Solving:
    """Euler to σ_down, then noise of σ_up, where σ_down² + σ_up² = σ'² and σ_up = η σ' sqrt(1 - σ'²/σ²)
    (Song et al. 2021, "Denoising Diffusion Implicit Models", equation 16, in sigma space)."""
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        if sigma_next == 0:
            x = denoised
            continue
        up = torch.minimum(sigma_next, eta * (sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2) ** 0.5)
        down = (sigma_next**2 - up**2) ** 0.5
        x = x + _slope(x, sigma, denoised) * (down - sigma)
        x = x + noise(sigma, sigma_next) * s_noise * up
    return x


def heun(x: Tensor, sigmas: Tensor, noise: NoiseSource) -> Solving:
    """Euler, then again with the mean of the slopes at both ends; plain Euler to 0 (Karras et al. 2022, algorithm 1)."""
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        slope = _slope(x, sigma, denoised)
        ahead = x + slope * (sigma_next - sigma)
        if sigma_next == 0:
            x = ahead
            continue
        denoised = yield Query(ahead, sigma_next, step)
        x = x + (slope + _slope(ahead, sigma_next, denoised)) / 2 * (sigma_next - sigma)
    return x


def dpmpp_2m(x: Tensor, sigmas: Tensor, noise: NoiseSource) -> Solving:
    """x' = σ'/σ x - (e^-h - 1) D, h = log σ - log σ', D extrapolated from the last two predictions, in the first step and in the one to 0
    just the last (Lu et al. 2022, "DPM-Solver++", algorithm 2)."""
    times = sigmas.log().neg()
    previous: Tensor | None = None
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        h = times[step + 1] - times[step]
        direction = denoised
        if previous is not None and sigma_next > 0:
            r = (times[step] - times[step - 1]) / h
            direction = (1 + 1 / (2 * r)) * denoised - (1 / (2 * r)) * previous
        x = (sigma_next / sigma) * x - (-h).expm1() * direction
        previous = denoised
    return x


SAMPLERS: dict[str, Sampler] = {
    "euler": euler,
    "euler_ancestral": euler_ancestral,
    "heun": heun,
    "dpmpp_2m": dpmpp_2m,
    "ddim": euler,  # differs by the noise under a mask, see mask.py
}


def evaluations(sampler: Sampler, sigmas: Sequence[float]) -> tuple[Evaluation, ...]:
    """What a sampler will ask, found by driving it with scalars: none of them looks at values to decide."""
    zero = torch.zeros(())
    solving = sampler(zero, torch.tensor(sigmas, dtype=torch.float32), lambda sigma, sigma_next: zero)
    asked: list[Evaluation] = []
    try:
        query = next(solving)
        while True:
            asked.append(Evaluation(len(asked), query.step, float(query.sigma)))
            query = solving.send(zero)
    except StopIteration:
        return tuple(asked)


def _slope(x: Tensor, sigma: Tensor, denoised: Tensor) -> Tensor:
    """dx/dσ."""
    return (x - denoised) / sigma
