"""Solves with fresh noise between the steps. Ancestral solvers step below the next level and add
noise up to it; the others solve the reverse stochastic equation along one Brownian path.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.ir.values import Query
from katz_graph.sampling.path import EXPLODING, Path, ancestral_split, middle_level
from katz_graph.sampling.solvers.solving import NoiseSource, Solving, in_relative_levels, slope


def euler_ancestral(
    x: Tensor,
    sigmas: Tensor,
    noise: NoiseSource,
    path: Path,
    *,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> Solving:
    """Steps by Euler to σ_down, then adds noise of σ_up (Song et al. 2021, "Denoising Diffusion
    Implicit Models", equation 12, in sigma space).
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        if sigma_next == 0:
            return denoised
        ancestral = path.ancestral(sigma, sigma_next, eta)
        x = x + slope(x, sigma, denoised) * (ancestral.down - sigma)
        x = x * ancestral.scale + noise(sigma, sigma_next) * s_noise * ancestral.up
    return x


def ddpm(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """Draws from q(x_t-1 | x_t, x_0 = denoised) (Ho et al. 2020, equations 6 and 7). In sigma
    space, mean and variance are those of an ancestral Euler step. Uses the same arithmetic on every
    path, as in ComfyUI.
    """
    return euler_ancestral(x, sigmas, noise, EXPLODING)


def dpm_2_ancestral(
    x: Tensor,
    sigmas: Tensor,
    noise: NoiseSource,
    path: Path,
    *,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> Solving:
    """Steps by dpm_2 to σ_down, then adds noise of σ_up; Euler if σ_down is 0."""
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        ancestral = path.ancestral(sigma, sigma_next, eta)
        down = ancestral.down
        if down == 0:
            x = denoised
        else:
            middle = middle_level(sigma, down)
            halfway = x + slope(x, sigma, denoised) * (middle - sigma)
            denoised = yield Query(halfway, middle, step)
            x = x + slope(halfway, middle, denoised) * (down - sigma)
        if sigma_next > 0:
            x = x * ancestral.scale + noise(sigma, sigma_next) * s_noise * ancestral.up
    return x


def dpmpp_2s_ancestral(
    x: Tensor,
    sigmas: Tensor,
    noise: NoiseSource,
    path: Path,
    *,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> Solving:
    """Steps by DPM-Solver++(2S) with r = 1/2 to σ_down (Lu et al. 2022, "DPM-Solver++", algorithm
    1), then adds noise of σ_up; takes the prediction if σ_down is 0.
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        ancestral = path.ancestral(sigma, sigma_next, eta)
        down = ancestral.down
        if down == 0:
            x = denoised
        else:
            middle = path.halfway(sigma, down)
            halfway = torch.lerp(denoised, x, float(middle / sigma))
            denoised = yield Query(halfway, middle, step)
            x = torch.lerp(denoised, x, float(down / sigma))
        if sigma_next > 0:
            x = x * ancestral.scale + noise(sigma, sigma_next) * s_noise * ancestral.up
    return x


def lcm(x: Tensor, sigmas: Tensor, noise: NoiseSource, path: Path) -> Solving:
    """Adds fresh noise of the next level to the prediction (Luo et al. 2023, "Latent Consistency
    Models", algorithm 3).
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        x = yield Query(x, sigma, step)
        if sigma_next > 0:
            x = path.noised(x, noise(sigma, sigma_next), sigma_next)
    return x


def res_multistep(
    x: Tensor,
    sigmas: Tensor,
    noise: NoiseSource,
    path: Path,
    *,
    eta: float = 0.0,
    s_noise: float = 1.0,
) -> Solving:
    """Applies a second-order exponential multistep integrator: extrapolates the last two
    predictions linearly in log σ. Their distance is the length of the previous step to σ_down,
    before noise was added. The first step and steps to σ_down 0 are Euler (Zhang et al. 2023,
    "Improved Order Analysis and Design of Exponential Integrator for Diffusion Models Sampling",
    section 4).
    """
    times = sigmas.log().neg()
    previous: tuple[Tensor, Tensor] | None = None  # prediction, time at the end of its step
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        down, up = ancestral_split(sigma, sigma_next, eta)
        if down == 0:
            x = denoised
        elif previous is None:
            x = x + slope(x, sigma, denoised) * (down - sigma)
        else:
            older, reached = previous
            h = down.log().neg() - times[step]
            phi_1 = -(-h).expm1() / h
            phi_2 = (1 - phi_1) / h
            weight = phi_2 * h / (times[step - 1] - reached)
            x = (-h).exp() * x + h * ((phi_1 - weight) * denoised + weight * older)
        if sigma_next > 0 and eta:
            x = x + noise(sigma, sigma_next) * s_noise * up
        previous = denoised, down.log().neg()
    return x


@in_relative_levels
def dpmpp_sde(
    x: Tensor,
    sigmas: Tensor,
    noise: NoiseSource,
    path: Path,
    *,
    eta: float = 1.0,
    s_noise: float = 1.0,
    r: float = 0.5,
) -> Solving:
    """Steps with two evaluations: over the share `r` of the step in log σ, then over the whole step
    with a prediction extrapolated from both. Adds noise each time (Lu et al. 2022, "DPM-Solver++",
    algorithm 1, made ancestral by Crowson, k-diffusion). A step to 0 returns the prediction.
    """
    if not 0 < r <= 1:
        raise InputError(
            "dpmpp_sde: r is the relative position of the midpoint; expected above 0 and at most "
            f"1, got {r:g}"
        )
    times = sigmas.log().neg()
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        if sigma_next == 0:
            return denoised
        # Rounded as in other implementations: the noise depends on the exact level, and near
        # the end a millionth of sigma is visible.
        middle = (times[step] + r * (times[step + 1] - times[step])).neg().exp()
        down, up = ancestral_split(sigma, middle, eta)
        between = (
            down / sigma * x + (1 - down / sigma) * denoised + noise(sigma, middle) * s_noise * up
        )
        denoised_between = yield Query(between, middle, step)
        direction = (1 - 1 / (2 * r)) * denoised + 1 / (2 * r) * denoised_between
        down, up = ancestral_split(sigma, sigma_next, eta)
        x = (
            down / sigma * x
            + (1 - down / sigma) * direction
            + noise(sigma, sigma_next) * s_noise * up
        )
    return x


@in_relative_levels
def dpmpp_2m_sde(
    x: Tensor,
    sigmas: Tensor,
    noise: NoiseSource,
    path: Path,
    *,
    eta: float = 1.0,
    s_noise: float = 1.0,
    solver_type: Literal["midpoint", "heun"] = "midpoint",
) -> Solving:
    """Runs SDE-DPM-Solver++(2M): x' = σ'/σ e^-ηh x + (1 - e^-(1+η)h) D + σ' sqrt(1 - e^-2ηh) z,
    where the difference of the last two predictions corrects D (Lu et al. 2022, "DPM-Solver++",
    appendix, equation 18 and its multistep form). A step to 0 returns the prediction.
    """
    if solver_type not in ("midpoint", "heun"):
        raise InputError(
            f"dpmpp_2m_sde: solver_type {solver_type!r} does not exist; choose midpoint or heun"
        )
    previous: tuple[Tensor, Tensor] | None = None  # prediction, length of its step in log σ
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        if sigma_next == 0:
            return denoised
        h = (sigma / sigma_next).log()
        both = (1 + eta) * h
        removed = (-both).expm1().neg()
        x = sigma_next / sigma * (-eta * h).exp() * x + removed * denoised
        if previous is not None:
            older, last_h = previous
            share = removed / 2 if solver_type == "midpoint" else 1 - removed / both
            x = x + share * (h / last_h) * (denoised - older)
        if eta:
            x = (
                x
                + noise(sigma, sigma_next)
                * sigma_next
                * (-2 * eta * h).expm1().neg().sqrt()
                * s_noise
            )
        previous = denoised, h
    return x


@in_relative_levels
def dpmpp_3m_sde(
    x: Tensor,
    sigmas: Tensor,
    noise: NoiseSource,
    path: Path,
    *,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> Solving:
    """Steps like dpmpp_2m_sde, with first and second differences of the last three predictions
    (Crowson, k-diffusion, after Lu et al. 2022, "DPM-Solver", appendix B). A step to 0 returns the
    prediction.
    """
    denoised_1: Tensor | None = None
    denoised_2: Tensor | None = None
    h_1 = h_2 = sigmas.new_ones(())
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        if sigma_next == 0:
            return denoised
        h = (sigma / sigma_next).log()
        both = (1 + eta) * h
        phi_2 = (-both).expm1() / both + 1
        x = (-both).exp() * x + (-both).expm1().neg() * denoised
        if denoised_1 is not None:
            r_1, r_2 = h_1 / h, h_2 / h
            first = (denoised - denoised_1) / r_1
            if denoised_2 is None:
                x = x + phi_2 * first
            else:
                second = (first - (denoised_1 - denoised_2) / r_2) / (r_1 + r_2)
                x = x + phi_2 * (first + second * r_1) - (phi_2 / both - 0.5) * second
        if eta:
            x = (
                x
                + noise(sigma, sigma_next)
                * sigma_next
                * (-2 * eta * h).expm1().neg().sqrt()
                * s_noise
            )
        denoised_1, denoised_2 = denoised, denoised_1
        h_1, h_2 = h, h_1
    return x


INTEGRATION_POINTS = 200  # points of er_sde's integrals: a left Riemann sum, as in the ecosystem


@in_relative_levels
def er_sde(
    x: Tensor,
    sigmas: Tensor,
    noise: NoiseSource,
    path: Path,
    *,
    solver_type: Literal["ER-SDE", "Reverse-time SDE", "ODE"] = "ER-SDE",
    max_stage: int = 3,
    eta: float = 1.0,
    s_noise: float = 1.0,
) -> Solving:
    """Steps by ER-SDE-Solver-3 (Cui et al. 2025, "Elucidating the Solution Space of Extended
    Reverse-Time SDE for Diffusion Models"): x' = r x + (1 - r) D + (d + I₀) D' + (d²/2 + I₁) D'' +
    sqrt(σ'² - r² σ²) z, with r = φ(σ') / φ(σ), d = σ' - σ, Iₙ = φ(σ') ∫ (s - σ)ⁿ / φ(s) ds from σ'
    to σ, and D', D'' the differences of the last `max_stage` predictions. A step to 0 returns the
    prediction.

    φ is σ (exp(σ^0.3) + 10)^eta for ER-SDE, σ^(1 + eta) for the reverse-time SDE, and σ without
    noise for the ODE.
    """
    if solver_type not in ("ER-SDE", "Reverse-time SDE", "ODE"):
        raise InputError(
            f"er_sde: solver_type {solver_type!r} does not exist; choose ER-SDE, Reverse-time SDE "
            "or ODE"
        )
    if solver_type == "ODE":
        eta = 0.0

    def log_phi(sigma: Tensor) -> Tensor:
        log = sigma.log()
        if solver_type == "ER-SDE":
            return log + eta * torch.logaddexp(sigma**0.3, sigma.new_tensor(10.0).log())
        return log + eta * log

    shares = torch.arange(INTEGRATION_POINTS, dtype=sigmas.dtype) / INTEGRATION_POINTS
    seen: list[tuple[Tensor, Tensor, Tensor | None]] = []  # σ, D and D' of earlier steps
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        if sigma_next == 0:
            return denoised
        d, log_next = sigma_next - sigma, log_phi(sigma_next)
        ratio = (log_next - log_phi(sigma)).exp()
        x = ratio * x + (1 - ratio) * denoised
        first: Tensor | None = None
        if seen and max_stage >= 2:
            places = torch.lerp(sigma_next, sigma, shares)
            weights = (log_next - log_phi(places)).exp() * -d / INTEGRATION_POINTS
            last_sigma, last, last_first = seen[-1]
            first = (denoised - last) / (sigma - last_sigma)
            x = x + (d + weights.sum()) * first
            if last_first is not None and max_stage >= 3:
                second = (first - last_first) * 2 / (sigma - seen[-2][0])
                x = x + (d**2 / 2 + (weights * (places - sigma)).sum()) * second
        if eta and s_noise:
            left = (sigma_next**2 - ratio**2 * sigma**2).clamp(min=0).sqrt()
            x = x + noise(sigma, sigma_next) * left * s_noise
        seen = [*seen[-1:], (sigma, denoised, first)]
    return x
