"""Solves by going below the next level and adding fresh noise up to it, from one generator for the
whole run.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from katz_graph.ir.values import Query
from katz_graph.sampling.solvers.single_step import middle_level
from katz_graph.sampling.solvers.solving import NoiseSource, Solving, ancestral_split, slope


def euler_ancestral(x: Tensor, sigmas: Tensor, noise: NoiseSource, *, eta: float = 1.0, s_noise: float = 1.0) -> Solving:
    """Steps by Euler to σ_down, then adds noise of σ_up (Song et al. 2021, "Denoising Diffusion
    Implicit Models", equation 12, in sigma space).
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        if sigma_next == 0:
            return denoised
        down, up = ancestral_split(sigma, sigma_next, eta)
        x = x + slope(x, sigma, denoised) * (down - sigma)
        x = x + noise(sigma, sigma_next) * s_noise * up
    return x


def ddpm(x: Tensor, sigmas: Tensor, noise: NoiseSource) -> Solving:
    """Draws from q(x_t-1 | x_t, x_0 = denoised): mean and variance of Ho et al. 2020, equations 6
    and 7, where sigma space makes them those of an ancestral Euler step.
    """
    return euler_ancestral(x, sigmas, noise)


def dpm_2_ancestral(x: Tensor, sigmas: Tensor, noise: NoiseSource, *, eta: float = 1.0, s_noise: float = 1.0) -> Solving:
    """Steps by dpm_2 to σ_down, then adds noise of σ_up; Euler where σ_down is 0."""
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        down, up = ancestral_split(sigma, sigma_next, eta)
        if down == 0:
            x = denoised
        else:
            middle = middle_level(sigma, down)
            halfway = x + slope(x, sigma, denoised) * (middle - sigma)
            denoised = yield Query(halfway, middle, step)
            x = x + slope(halfway, middle, denoised) * (down - sigma)
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * s_noise * up
    return x


def dpmpp_2s_ancestral(x: Tensor, sigmas: Tensor, noise: NoiseSource, *, eta: float = 1.0, s_noise: float = 1.0) -> Solving:
    """Steps by DPM-Solver++(2S) with r = 1/2 to σ_down (Lu et al. 2022, "DPM-Solver++", algorithm
    1), then adds noise of σ_up; returns the prediction where σ_down is 0.
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        denoised = yield Query(x, sigma, step)
        down, up = ancestral_split(sigma, sigma_next, eta)
        if down == 0:
            x = denoised
        else:
            middle = middle_level(sigma, down)
            halfway = torch.lerp(denoised, x, float(middle / sigma))
            denoised = yield Query(halfway, middle, step)
            x = torch.lerp(denoised, x, float(down / sigma))
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * s_noise * up
    return x


def lcm(x: Tensor, sigmas: Tensor, noise: NoiseSource) -> Solving:
    """Noises the prediction anew to the next level (Luo et al. 2023, "Latent Consistency Models",
    algorithm 3).
    """
    for step, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        x = yield Query(x, sigma, step)
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * sigma_next
    return x


def res_multistep(x: Tensor, sigmas: Tensor, noise: NoiseSource, *, eta: float = 0.0, s_noise: float = 1.0) -> Solving:
    """Integrates exponentially to second order, the prediction linear in log σ through the last
    two, the older one told apart by how far noise had set the run back; the first step and those to
    σ_down 0 are Euler (Zhang et al. 2023, "Improved Order Analysis and Design of Exponential
    Integrator for Diffusion Models Sampling", section 4).
    """
    times = sigmas.log().neg()
    previous: tuple[Tensor, Tensor] | None = None  # prediction, time that its step reached
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
