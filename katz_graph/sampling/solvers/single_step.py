"""Solves the flow without earlier predictions: Euler and Runge-Kutta methods."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from katz_graph.ir.values import Query
from katz_graph.sampling.path import Path, middle_level
from katz_graph.sampling.solvers.solving import NoiseSource, Solving, slope


def euler(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """x' = x + (σ' - σ) d with d = (x - denoised) / σ (Karras et al. 2022, algorithm 1). Equals
    DDIM without noise.
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        x = x + slope(x, sigma, denoised) * (sigma_next - sigma)
    return x


def heun(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """Steps by Euler, then again with the mean of the slopes at both ends; plain Euler to 0 (Karras
    et al. 2022, algorithm 1).
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        here = slope(x, sigma, denoised)
        ahead = x + here * (sigma_next - sigma)
        if sigma_next == 0:
            x = ahead
            continue
        denoised = yield Query(ahead, sigma_next, step)
        x = x + (here + slope(ahead, sigma_next, denoised)) / 2 * (sigma_next - sigma)
    return x


def heunpp2(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """Steps along the weighted mean of slopes at σ_i, and at σ_i+1 and σ_i+2 after Euler steps.

    Of n slopes, the one at σ_i+k has weight σ_i+k / (n σ_0) and that at σ_i the rest, so that later
    levels fade with the noise. Uses two slopes in the penultimate step, one in the last. Heun++ has
    no paper, only code (Carzit, sd-webui-sampler-heunpp); it is of first order.
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        slopes, ahead, level = [slope(x, sigma, denoised)], x, sigma
        steps_after_this = len(sigmas) - 2 - step
        further = sigmas[step + 1 :][: min(2, steps_after_this)]
        for level_ahead in further:
            ahead = ahead + slopes[-1] * (level_ahead - level)
            level = level_ahead
            denoised = yield Query(ahead, level, step)
            slopes.append(slope(ahead, level, denoised))
        weights = further / (len(slopes) * sigmas[0])
        mean = slopes[0] * (1 - weights.sum())
        for weight, other in zip(weights, slopes[1:], strict=True):
            mean = mean + other * weight
        x = x + mean * (sigma_next - sigma)
    return x


def dpm_2(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """Steps with the slope at the step's middle in log σ; plain Euler to 0 (Lu et al. 2022,
    "DPM-Solver", algorithm 1 with r = 1/2, in sigma space, to first order in the half step).
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        here = slope(x, sigma, denoised)
        if sigma_next == 0:
            x = x + here * (sigma_next - sigma)
            continue
        middle = middle_level(sigma, sigma_next)
        halfway = x + here * (middle - sigma)
        denoised = yield Query(halfway, middle, step)
        x = x + slope(halfway, middle, denoised) * (sigma_next - sigma)
    return x


def dpm_fast(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """Runs DPM-Solver-fast (Lu et al. 2022, "DPM-Solver", section 3.4) with N evaluations, in steps
    of equal length in log σ from the first level to the last positive one; levels between these
    only determine N. Steps have order 3, but the last one or two have order 2 or 1, to fit N.
    """
    budget = len(sigmas) - 1
    if budget < 2:  # first and last level are the same
        return (yield from euler(x, sigmas, noise, path))
    last = sigmas[-1] if sigmas[-1] > 0 else sigmas[-2]
    levels = torch.linspace(float(sigmas[0].log()), float(last.log()), budget // 3 + 2).exp()
    rest = [2, 1] if budget % 3 == 0 else [budget % 3]
    orders = [3] * (budget // 3 + 1 - len(rest)) + rest
    for step, (order, (sigma, sigma_next)) in enumerate(zip(orders, pairwise(levels), strict=True)):
        x = yield from _dpm_solver_step(order, x, sigma, sigma_next, step)
    return x


def _dpm_solver_step(
    order: int, x: Tensor, sigma: Tensor, sigma_next: Tensor, step: int
) -> Solving:
    """Steps by DPM-Solver-1, -2 or -3 with intermediate points at equal parts of the step in log σ
    (Lu et al. 2022, equation 3.7, algorithms 1 and 2), where ε is the slope, α = 1 and λ = -log σ.
    """
    h = (sigma / sigma_next).log()

    def level_at(part: float) -> Tensor:
        return sigma * (-part * h).exp()

    denoised = yield Query(x, sigma, step)
    here = slope(x, sigma, denoised)
    straight = x - sigma_next * h.expm1() * here
    if order == 1:
        return straight
    first = level_at(1 / order)
    point = x - first * (h / order).expm1() * here
    denoised = yield Query(point, first, step)
    change = slope(point, first, denoised) - here
    if order == 2:
        return straight - sigma_next * h.expm1() * change
    second = level_at(2 / 3)
    point = (
        x
        - second * (2 / 3 * h).expm1() * here
        - second * 2 * ((2 / 3 * h).expm1() / (2 / 3 * h) - 1) * change
    )
    denoised = yield Query(point, second, step)
    return straight - sigma_next * 3 / 2 * (h.expm1() / h - 1) * (
        slope(point, second, denoised) - here
    )
