"""Samplers on data whose denoiser and exact solution are known: Gaussian data N(mean, s²).

denoised(x, σ) = mean + s² / (s² + σ²) (x - mean), and the flow keeps (x - mean) / sqrt(s² + σ²) constant.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from katz_graph.sampling.samplers import SAMPLERS, Sampler, dpmpp_2m, euler, euler_ancestral, evaluations, heun

torch.set_num_threads(1)
MEAN, SPREAD = 0.3, 0.5
Denoiser = Callable[[Tensor, Tensor], Tensor]


def gaussian_denoiser(x: Tensor, sigma: Tensor) -> Tensor:
    return MEAN + SPREAD**2 / (SPREAD**2 + sigma**2) * (x - MEAN)


def solve(sampler: Sampler, x: Tensor, sigmas: Tensor, denoiser: Denoiser = gaussian_denoiser, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape, dtype = x.shape, x.dtype
    solving = sampler(x, sigmas, lambda sigma, sigma_next: torch.randn(shape, generator=generator, dtype=dtype))
    try:
        query = next(solving)
        while True:
            query = solving.send(denoiser(query.x, query.sigma))
    except StopIteration as finished:
        result: Tensor = finished.value
        return result


def error_at_the_end(sampler: Sampler, steps: int) -> float:
    """Of the solution from σ = 10 to 0.1 in float64."""
    sigmas = torch.linspace(10 ** (1 / 7), 0.1 ** (1 / 7), steps + 1, dtype=torch.float64) ** 7
    exact = MEAN + (7.0 - MEAN) * math.sqrt((SPREAD**2 + 0.01) / (SPREAD**2 + 100))
    return abs(float(solve(sampler, torch.tensor(7.0, dtype=torch.float64), sigmas)) - exact)


@pytest.mark.parametrize(("sampler", "order"), [(euler, 1), (heun, 2), (dpmpp_2m, 2)])
def test_convergence_has_the_order_of_the_paper(sampler: Sampler, order: int) -> None:
    errors = [error_at_the_end(sampler, steps) for steps in (100, 200, 400)]
    observed = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    # a method of the next lower or higher order is a whole unit away
    assert observed == pytest.approx([order, order], abs=0.15)
    assert errors[-1] < 0.02


@pytest.mark.parametrize("sampler", [euler, euler_ancestral, heun, dpmpp_2m])
def test_to_zero_noise_the_last_prediction_is_the_picture(sampler: Sampler) -> None:
    x = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(1)) * 5
    picture = torch.full_like(x, 0.7)
    result = solve(sampler, x, torch.tensor([5.0, 2.0, 0.5, 0.0]), lambda x, sigma: picture)
    torch.testing.assert_close(result, picture, rtol=0, atol=1e-6)


def test_euler_is_ddim() -> None:
    """Song et al. 2021, equation 12 with sigma_t = 0, in its own variables: z = sqrt(ᾱ) x."""
    sigmas = np.array([12.0, 6.0, 2.5, 0.8, 0.2])
    z = 9.0 / math.sqrt(1 + sigmas[0] ** 2)
    for sigma, sigma_next in pairwise(sigmas):
        alpha, alpha_next = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
        picture = float(gaussian_denoiser(torch.tensor(z / math.sqrt(alpha), dtype=torch.float64), torch.tensor(sigma)))
        epsilon = (z - math.sqrt(alpha) * picture) / math.sqrt(1 - alpha)
        z = math.sqrt(alpha_next) * picture + math.sqrt(1 - alpha_next) * epsilon
    ours = solve(SAMPLERS["ddim"], torch.tensor(9.0, dtype=torch.float64), torch.from_numpy(sigmas))
    assert float(ours) == pytest.approx(z * math.sqrt(1 + sigmas[-1] ** 2), rel=1e-12)


def test_one_heun_step_by_hand() -> None:
    # denoised = 0: dx/dσ = x/σ, 8 at σ 4 is 6 at σ 3, slopes 2 and 2
    assert float(solve(heun, torch.tensor(8.0), torch.tensor([4.0, 3.0]), lambda x, sigma: x * 0)) == 6.0
    # denoised = 1 at σ 4 and 3 at σ 2: slopes (9-1)/4 = 2 and (5-3)/2 = 1, so 9 - 2 · 1.5
    answers = {4.0: 1.0, 2.0: 3.0}
    assert float(solve(heun, torch.tensor(9.0), torch.tensor([4.0, 2.0]), lambda x, sigma: torch.tensor(answers[float(sigma)]))) == 6.0


def test_two_dpmpp_2m_steps_by_hand() -> None:
    """σ 4, 2, 1 makes h = ln 2 twice: the second step sees 1.5 D₁ - 0.5 D₀."""
    answers = {4.0: 1.0, 2.0: 3.0}
    result = solve(dpmpp_2m, torch.tensor(8.0), torch.tensor([4.0, 2.0, 1.0]), lambda x, sigma: torch.tensor(answers[float(sigma)]))
    after_first = 0.5 * 8 + 0.5 * 1
    assert float(result) == pytest.approx(0.5 * after_first + 0.5 * (1.5 * 3 - 0.5 * 1), rel=1e-6)


def test_an_ancestral_step_splits_the_variance() -> None:
    """With denoised = 0, x' = x σ_down/σ + noise σ_up; from 2 to 1: σ_up² = 1 · (4 - 1) / 4, σ_down² = 1/4."""
    noise = torch.randn(1, generator=torch.Generator().manual_seed(5))
    result = solve(euler_ancestral, torch.tensor([6.0]), torch.tensor([2.0, 1.0]), lambda x, sigma: x * 0, seed=5)
    assert float(result) == pytest.approx(6.0 / 4 + float(noise) * math.sqrt(0.75), rel=1e-6)


def test_ancestral_sampling_reaches_the_distribution_of_the_data() -> None:
    generator = torch.Generator().manual_seed(0)
    samples, steps = 20_000, 200
    sigmas = torch.cat([torch.linspace(20 ** (1 / 7), 0.01 ** (1 / 7), steps) ** 7, torch.zeros(1)])
    result = solve(euler_ancestral, torch.randn(samples, generator=generator) * 20, sigmas, seed=1)
    # standard errors: 0.0035 of the mean, 0.5 % of the spread; the discretisation adds about 2 % at 200 steps
    assert float(result.mean()) == pytest.approx(MEAN, abs=0.015)
    assert float(result.std()) == pytest.approx(SPREAD, rel=0.05)


def test_without_eta_ancestral_is_euler() -> None:
    x, sigmas = torch.tensor([6.0, -3.0]), torch.tensor([9.0, 4.0, 1.0])
    still = solve(lambda x, sigmas, noise: euler_ancestral(x, sigmas, noise, eta=0.0), x, sigmas)
    torch.testing.assert_close(still, solve(euler, x, sigmas), rtol=1e-6, atol=0)


def test_the_list_of_evaluations_is_known_before() -> None:
    sigmas = (4.0, 2.0, 1.0, 0.0)
    single = [(0, 0, 4.0), (1, 1, 2.0), (2, 2, 1.0)]
    double = [(0, 0, 4.0), (1, 0, 2.0), (2, 1, 2.0), (3, 1, 1.0), (4, 2, 1.0)]
    for name, sampler in SAMPLERS.items():
        listed = [(e.index, e.step, e.sigma) for e in evaluations(sampler, sigmas)]
        assert listed == (double if name == "heun" else single), name
        assert evaluations(sampler, ()) == ()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_dpmpp_2m_agrees_with_diffusers_own_solver() -> None:
    """An independent implementation of the same paper, in its own variables (z = x sqrt(ᾱ)) and with the epsilon of the same data."""
    from diffusers import DPMSolverMultistepScheduler

    theirs = DPMSolverMultistepScheduler(
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, use_karras_sigmas=True, final_sigmas_type="sigma_min"
    )
    theirs.set_timesteps(12)
    start = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(3))
    sigmas = theirs.sigmas
    z = start.clone()
    for timestep, sigma in zip(theirs.timesteps, sigmas, strict=False):
        x = z * torch.sqrt(1 + sigma**2)
        z = theirs.step((x - gaussian_denoiser(x, sigma)) / sigma, timestep, z, return_dict=False)[0]
    # diffusers makes the last step of fewer than 15 first order: compare the state before it
    ours = solve(dpmpp_2m, start * torch.sqrt(1 + sigmas[0] ** 2), sigmas[:-1])
    last = solve(euler, ours, sigmas[-2:])
    torch.testing.assert_close(last, z * torch.sqrt(1 + sigmas[-1] ** 2), rtol=1e-4, atol=1e-4)
