"""Our samplers match diffusers' schedulers of the same papers, in lockstep on the same levels, data
and noise.

Some schedulers have x in sigma space, the others z = x / sqrt(1 + σ²); predictions are ε = (x -
denoised) / σ.
"""

import math
from typing import Any

import diffusers
import pytest
import torch
from gaussian_data import fresh_noise, solve
from torch import Tensor

from katz_graph.sampling.names import SamplerChoice
from katz_graph.sampling.path import VarianceExploding
from katz_graph.sampling.samplers import solver_of

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"
)
TABLE = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
START = torch.randn(1, 4, 6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def denoiser(x: Tensor, sigma: Tensor) -> Tensor:
    """Denoises for no simple distribution, so that no term vanishes."""
    return x * 0.25 / (0.25 + sigma**2) + 0.3 * torch.sin(2 * x / (1 + sigma**2).sqrt())


def ours(name: str, sigmas: Tensor, noise: Any = None, **options: float | str) -> Tensor:
    sigmas = sigmas.double()
    choice = SamplerChoice(name, tuple(options.items()))
    sampler = solver_of(choice, tuple(sigmas.tolist()), VarianceExploding(14.6)).sampler
    return solve(sampler, START * sigmas[0], sigmas, denoiser, noise)


def in_sigma_space(scheduler: Any, **arguments: Any) -> Tensor:
    # float32 levels cannot be derived from the scaling
    for levels in ("sigmas", "sigmas_interpol", "sigmas_up", "sigmas_down"):
        if hasattr(scheduler, levels):
            setattr(scheduler, levels, getattr(scheduler, levels).double())
    x = START * scheduler.sigmas[0]
    for timestep in scheduler.timesteps:
        # 1 / sqrt(1 + σ²)
        shrunk = float(scheduler.scale_model_input(torch.ones(1, dtype=torch.float64), timestep))
        sigma = torch.tensor(math.sqrt(1 / shrunk**2 - 1), dtype=torch.float64)
        x = scheduler.step(
            (x - denoiser(x, sigma)) / sigma, timestep, x, **arguments, return_dict=False
        )[0]
    return x


def variance_preserving(scheduler: Any, sigmas: Tensor, noise: Any = None) -> Tensor:
    sigmas = sigmas.double()
    z = START * sigmas[0] / (1 + sigmas[0] ** 2).sqrt()
    for timestep, sigma, sigma_next in zip(
        scheduler.timesteps, sigmas[:-1], sigmas[1:], strict=True
    ):
        x = z * (1 + sigma**2).sqrt()
        drawn = {"variance_noise": noise(sigma, sigma_next)} if noise and sigma_next > 0 else {}
        z = scheduler.step(
            (x - denoiser(x, sigma)) / sigma, timestep, z, **drawn, return_dict=False
        )[0]
    return z * (1 + sigmas[-1] ** 2).sqrt()


def same(one: Tensor, other: Tensor) -> None:
    """Allows for diffusers' float32 levels."""
    torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("steps", [2, 5, 12])
def test_heun(steps: int) -> None:
    scheduler = diffusers.HeunDiscreteScheduler(**TABLE, use_karras_sigmas=True)
    scheduler.set_timesteps(steps)
    levels = torch.unique_consecutive(scheduler.sigmas)
    same(ours("heun", levels), in_sigma_space(scheduler))


@pytest.mark.parametrize("steps", [2, 5, 12])
def test_dpm_2(steps: int) -> None:
    scheduler = diffusers.KDPM2DiscreteScheduler(**TABLE)
    scheduler.set_timesteps(steps)
    levels = torch.unique_consecutive(scheduler.sigmas)
    same(ours("dpm_2", levels), in_sigma_space(scheduler))


@pytest.mark.parametrize("steps", [5, 12])
def test_lms(steps: int) -> None:
    """Compares all but the last step, which diffusers extrapolates."""
    scheduler = diffusers.LMSDiscreteScheduler(**TABLE, use_karras_sigmas=True)
    scheduler.set_timesteps(steps)
    levels = scheduler.sigmas[:-1]
    scheduler.timesteps = scheduler.timesteps[:-1]
    # integrals to 1e-4
    torch.testing.assert_close(ours("lms", levels), in_sigma_space(scheduler), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "variant"), [("uni_pc", "bh1"), ("uni_pc_bh2", "bh2")])
@pytest.mark.parametrize("steps", [3, 6, 16])
def test_unipc(name: str, variant: str, steps: int) -> None:
    """diffusers lowers the last orders only below 15 steps and evaluates nothing twice; other steps
    are equal.
    """
    scheduler = diffusers.UniPCMultistepScheduler(
        **TABLE,
        solver_order=3,
        solver_type=variant,
        use_karras_sigmas=True,
        final_sigmas_type="sigma_min",
        lower_order_final=True,
    )
    scheduler.set_timesteps(steps)
    levels = scheduler.sigmas[:-1]
    levels = torch.cat([levels, levels[-1:] / 3])
    scheduler.sigmas = levels
    same(ours(name, levels), variance_preserving(scheduler, levels))


@pytest.mark.parametrize(
    ("name", "solver_type"), [("dpmpp_2m_sde", "midpoint"), ("dpmpp_2m_sde_heun", "heun")]
)
def test_stochastic_multistep(name: str, solver_type: str) -> None:
    scheduler = diffusers.DPMSolverMultistepScheduler(
        **TABLE,
        algorithm_type="sde-dpmsolver++",
        solver_type=solver_type,
        use_karras_sigmas=True,
        final_sigmas_type="zero",
    )
    scheduler.set_timesteps(20)
    same(
        ours(name, scheduler.sigmas, fresh_noise(START, 8)),
        variance_preserving(scheduler, scheduler.sigmas, fresh_noise(START, 8)),
    )


def test_dpmpp_3m_sde_without_noise() -> None:
    """diffusers 0.42's stochastic form has a wrong sign in the last term."""
    scheduler = diffusers.DPMSolverMultistepScheduler(
        **TABLE, solver_order=3, use_karras_sigmas=True, final_sigmas_type="zero"
    )
    scheduler.set_timesteps(20)
    same(
        ours("dpmpp_3m_sde", scheduler.sigmas, eta=0.0),
        variance_preserving(scheduler, scheduler.sigmas),
    )


def test_dpmpp_2m() -> None:
    scheduler = diffusers.DPMSolverMultistepScheduler(
        **TABLE, use_karras_sigmas=True, final_sigmas_type="zero"
    )
    scheduler.set_timesteps(12)
    same(ours("dpmpp_2m", scheduler.sigmas), variance_preserving(scheduler, scheduler.sigmas))


def test_euler_ancestral() -> None:
    scheduler = diffusers.EulerAncestralDiscreteScheduler(**TABLE)
    scheduler.set_timesteps(12)
    theirs = in_sigma_space(scheduler, generator=torch.Generator().manual_seed(8))
    same(ours("euler_ancestral", scheduler.sigmas, fresh_noise(START, 8)), theirs)
