"""Solves the flow with one evaluation a step, reusing earlier predictions: Adams-Bashforth and
related methods, and UniPC, which corrects each point after its evaluation.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from katz_graph.ir.values import Query
from katz_graph.sampling.path import Path
from katz_graph.sampling.solvers.solving import NoiseSource, Solving, slope

Clock = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Maps sigmas to the times used for polynomial interpolation of slopes."""

ADAMS_BASHFORTH = (
    (1.0,),
    (3 / 2, -1 / 2),
    (23 / 12, -16 / 12, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
"""Weights of slopes, newest first, for equal steps (Liu et al. 2022, "PNDM", equation 12)."""

# points and masses on [-1, 1]; exact for polynomials up to degree 127
QUADRATURE = np.polynomial.legendre.leggauss(64)
LAST_LEVEL = 0.001  # replaces 0, where log σ is infinite; the ecosystem's value
HIGHEST_ORDER = 3
Variant = Literal["bh1", "bh2"]


def lms(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path, *, order: int = 4) -> Solving:
    """Applies the linear multistep method for unequal steps: the slope is the polynomial in σ
    through the last `order` slopes (Hairer, Nørsett and Wanner, "Solving Ordinary Differential
    Equations I", III.5). A step to 0 returns the prediction.
    """
    return (
        yield from _multistep(
            x, sigmas, order, lambda levels: _weights(levels, lambda sigma: sigma)
        )
    )


def deis(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path, *, order: int = 3) -> Solving:
    """Applies tAB-DEIS: the slope is the polynomial through the last `order` slopes in the time of
    the variance preserving process (Zhang and Chen 2023, "Fast Sampling of Diffusion Models with
    Exponential Integrator", equations 14 and 15). A step to 0 returns the prediction.
    """
    return (
        yield from _multistep(
            x, sigmas, order, lambda levels: _weights(levels, variance_preserving_time)
        )
    )


def ipndm(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """Applies Adams-Bashforth of order 4 with coefficients for equal steps; the first three steps
    have lower order (Zhang and Chen 2023, section 3, "iPNDM", after Liu et al. 2022). A step to 0
    returns the prediction.
    """

    def weights(levels: Sequence[float]) -> Sequence[float]:
        return [weight * (levels[0] - levels[1]) for weight in ADAMS_BASHFORTH[len(levels) - 2]]

    return (yield from _multistep(x, sigmas, len(ADAMS_BASHFORTH), weights))


def gradient_estimation(
    x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path, *, gamma: float = 2.0
) -> Solving:
    """Steps by Euler along γ d + (1 - γ) d_before; a step to 0 returns the prediction (Permenter
    and Yuan 2024, "Interpreting and Improving Diffusion Models from an Optimization Perspective",
    algorithm 2).
    """

    def weights(levels: Sequence[float]) -> Sequence[float]:
        stride = levels[0] - levels[1]
        return [stride] if len(levels) == 2 else [gamma * stride, (1 - gamma) * stride]

    return (yield from _multistep(x, sigmas, 2, weights))


def dpmpp_2m(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """x' = σ'/σ x - (e^-h - 1) D with h = log σ - log σ'. D is extrapolated from the last two
    predictions; in the first step and in a step to 0, D is the last prediction (Lu et al. 2022,
    "DPM-Solver++", algorithm 2).
    """
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


def variance_preserving_time(sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the t of σ² + 1 = exp(β_d t²/2 + β_min t), scaled from σ 0.002 at t 0.001 to σ 80 at
    t 1 (Song et al. 2021, "Score-Based Generative Modeling through SDEs", equation 33, with the
    range of Karras et al. 2022).
    """
    start, low, high = 1e-3, math.log1p(0.002**2), math.log1p(80.0**2)
    slope_of_beta = 2 * (low / start - high) / (start - 1)
    beta_min = high - slope_of_beta / 2
    return (
        np.sqrt(beta_min**2 + 2 * slope_of_beta * np.log1p(sigma**2)) - beta_min
    ) / slope_of_beta


def _multistep(
    x: Tensor, sigmas: Tensor, order: int, weights: Callable[[Sequence[float]], Sequence[float]]
) -> Solving:
    """Steps along the sum of weights times slopes, newest first. `weights` takes the next level,
    then the levels of the slopes.
    """
    slopes: deque[Tensor] = deque(maxlen=order)
    levels = sigmas.tolist()
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        if sigma_next == 0:
            return denoised
        slopes.appendleft(slope(x, sigma, denoised))
        known = levels[step + 1 - len(slopes) : step + 1]
        for weight, past in zip(weights([levels[step + 1], *reversed(known)]), slopes, strict=True):
            x = x + past * weight
    return x


def _weights(levels: Sequence[float], clock: Clock) -> list[float]:
    """Integrates ∫ ℓ_j(clock(σ)) dσ from levels[1] to levels[0], where ℓ_j is the Lagrange basis on
    the times of levels[1:].
    """
    target, start = levels[:2]
    points, masses = QUADRATURE
    times = clock((start + target) / 2 + (target - start) / 2 * points)
    known = clock(np.array(levels[1:]))
    bases = [
        np.prod(
            [(times - other) / (own - other) for k, other in enumerate(known) if k != j], axis=0
        )
        * np.ones_like(times)
        for j, own in enumerate(known)
    ]
    return [float((target - start) / 2 * np.sum(masses * basis)) for basis in bases]


def uni_pc(
    x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path, *, variant: Variant = "bh1"
) -> Solving:
    """Runs multistep UniPC-3 for data prediction, with lower order in the first steps and the last,
    and no corrector after the last (Zhao et al. 2023, "UniPC", algorithms 1 and 2, section 3.3 and
    appendix; B(h) = h or e^h - 1).

    The paper's variance preserving variables are x and σ divided by sqrt(1 + σ²), which cancels
    throughout. If the last level is 0, stops at LAST_LEVEL, or at half the previous level if that
    is lower.
    """
    steps = len(sigmas) - 1
    if steps < 1:
        return x
    if sigmas[-1] == 0:
        sigmas = torch.cat(
            [sigmas[:-1], torch.minimum(sigmas.new_tensor(LAST_LEVEL), sigmas[-2] / 2)[None]]
        )
    levels = sigmas.tolist()
    highest = max(1, min(HIGHEST_ORDER, steps - 1))
    predictions: list[Tensor] = []  # newest first
    predicted, order = x, 0
    for step in range(steps):
        denoised = yield Query(predicted, sigmas[step], step)
        if order:
            x = _advanced(
                x,
                predictions[:order],
                levels[step - 1 :: -1][:order],
                levels[step],
                variant,
                denoised,
            )
        predictions = [denoised, *predictions][:highest]
        reached = step + 1
        order = min(reached, highest, steps + 1 - reached) if reached >= highest else reached
        predicted = _advanced(
            x, predictions[:order], levels[step::-1][:order], levels[reached], variant
        )
    return predicted


def _advanced(
    x: Tensor,
    predictions: Sequence[Tensor],
    levels: Sequence[float],
    level: float,
    variant: Variant,
    arrived: Tensor | None = None,
) -> Tensor:
    """Advances from the newest known level to `level`: by UniP of order len(predictions), or by
    UniC with `arrived`, the prediction at `level`.
    """
    newest = predictions[0]
    h = math.log(levels[0] / level)
    parts = [math.log(levels[0] / known) / h for known in levels[1:]]
    differences = [
        (older - newest) / part for older, part in zip(predictions[1:], parts, strict=True)
    ]
    if arrived is not None:
        parts, differences = [*parts, 1.0], [*differences, arrived - newest]
    scale = -h if variant == "bh1" else math.expm1(-h)
    x = level / levels[0] * x - math.expm1(-h) * newest
    for weight, difference in zip(_coefficients(parts, h, scale), differences, strict=True):
        x = x - scale * weight * difference
    return x


def _coefficients(parts: Sequence[float], h: float, scale: float) -> list[float]:
    """Solves equation 9 for a, with φ_k of -h. A single coefficient is 1/2, as in the paper for
    orders 1 and 2.
    """
    count = len(parts)
    if count < 2:
        return [0.5] * count
    moments, phi = [], math.expm1(-h) / -h - 1
    for k in range(1, count + 1):
        moments.append(phi * math.factorial(k) / scale)
        phi = phi / -h - 1 / math.factorial(k + 1)
    powers = np.array([[part ** (k - 1) for part in parts] for k in range(1, count + 1)])
    solution: list[float] = np.linalg.solve(powers, np.array(moments)).tolist()
    return solution
