"""Sampling a flow, x = (1 - σ) x0 + σ noise: solvers on Gaussian data with a known flow, and the
start and end of a run.
"""

import math
from itertools import pairwise

import pytest
import torch
from gaussian_data import MEAN, SPREAD, solve
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.ir.values import Step, per_row
from katz_graph.sampling.names import SAMPLER_NAMES, SAMPLERS, SCHEDULER_NAMES, SamplerChoice
from katz_graph.sampling.noise import initial_noise
from katz_graph.sampling.noise_table import flow_table, noise_table
from katz_graph.sampling.path import EXPLODING, Flow, Path
from katz_graph.sampling.prediction import to_denoised
from katz_graph.sampling.process import Process, start_process
from katz_graph.sampling.samplers import BoundSampler, Solver, evaluations, solver_of
from katz_graph.sampling.schedules import schedule, slice_steps
from katz_graph.sampling.solvers import stochastic
from katz_graph.sampling.spec import SamplingSpec

torch.set_num_threads(1)
SD3 = flow_table(3.0)
FIRST = 3 * 0.9999 / (1 + 2 * 0.9999)  # replaces its level 1: percent 0.0001
SHAPE = (2, 4, 8, 6)
ORIGINAL = initial_noise(SHAPE, 99) * 0.6
# they add the noise of another path, as in ComfyUI: nothing is promised here
OF_ANOTHER_PATH = ("ddpm", "res_multistep_ancestral")


# Solvers


def denoised(x: Tensor, sigma: Tensor) -> Tensor:
    """E[x0 | x] of Gaussian data."""
    share = 1 - sigma
    return MEAN + share * SPREAD**2 / (share**2 * SPREAD**2 + sigma**2) * (x - share * MEAN)


def flowed(x: float, sigma: float, end: float) -> float:
    """Solves exactly: the distance from the mean in deviations is constant."""

    def deviation(level: float) -> float:
        return math.hypot((1 - level) * SPREAD, level)

    return (1 - end) * MEAN + (x - (1 - sigma) * MEAN) * deviation(end) / deviation(sigma)


def solver(name: str, **options: float | str) -> Solver:
    return solver_of(SamplerChoice(name, tuple(options.items())), (1.0, 0.5, 0.2), SD3.path)


def of(name: str, **options: float | str) -> BoundSampler:
    return solver(name, **options).sampler


ORDERS = {
    "euler": 1,
    "heun": 2,
    "dpm_2": 2,
    "dpmpp_2m": 2,
    "ipndm": 2,
    "uni_pc": 2,
    "res_multistep": 2,
    "gradient_estimation": 1,
    "lms": 2,
    "deis": 2,
    "euler_ancestral": 1,
    "dpm_2_ancestral": 2,
    "dpmpp_2s_ancestral": 2,
    "dpmpp_sde": 2,
    "dpmpp_2m_sde": 2,
    "dpmpp_2m_sde_heun": 2,
    "dpmpp_3m_sde": 2,
    "er_sde": 2,
}


@pytest.mark.parametrize("name", ORDERS)
def test_solvers_converge_to_the_flow_at_their_order(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise is off, and er_sde's integrals are exact."""
    monkeypatch.setattr(stochastic, "INTEGRATION_POINTS", 20_000)
    sampler = of(name, **({} if SAMPLERS[name].noise == "none" else {"eta": 0.0}))
    x, first, last = 1.7, 0.9, 0.1
    errors = [
        float(
            solve(
                sampler,
                torch.tensor(x, dtype=torch.float64),
                torch.linspace(first, last, steps + 1, dtype=torch.float64),
                denoised,
            )
        )
        - flowed(x, first, last)
        for steps in (100, 202, 406)
    ]
    observed = [math.log(abs(coarse / fine), 2.01) for coarse, fine in pairwise(errors)]
    assert observed == pytest.approx([ORDERS[name]] * 2, abs=0.4)
    assert abs(errors[-1]) < 5e-3


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, entry in SAMPLERS.items()
        if entry.noise != "none" and name not in (*OF_ANOTHER_PATH, "lcm")
    ],
)
def test_fresh_noise_keeps_the_distribution_of_the_data(name: str) -> None:
    samples, steps = 20_000, 60
    # pure noise at 1, where log-SNR is infinite, then equally spaced in log-SNR
    sigmas = torch.cat([torch.ones(1), torch.linspace(6, -6, steps + 1).sigmoid(), torch.zeros(1)])
    noise = solver(name).noise_source((samples,), 1, sigmas, "cpu")
    start = torch.randn(samples, generator=torch.Generator().manual_seed(0))
    result = solve(of(name), start, sigmas, denoised, noise=noise)
    # standard errors: 0.0035 of the mean, 0.5 % of the spread; first-order discretisation takes
    # about 10 % at 60 steps
    assert float(result.mean()) == pytest.approx(MEAN, abs=0.015)
    assert float(result.std()) == pytest.approx(
        SPREAD, rel=0.15 if name == "euler_ancestral" else 0.03
    )


@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_to_no_noise_the_last_prediction_is_the_picture(sampler: str) -> None:
    x = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(1))
    picture = torch.full_like(x, 0.7)
    sigmas = torch.tensor([1.0, 0.6, 0.2, 0.0])
    noise = solver(sampler).noise_source(x.shape, 1, sigmas, "cpu")
    result = solve(of(sampler), x, sigmas, lambda x, sigma: picture, noise)
    # two end before 0, with that much noise left
    left = 0.2 if sampler == "dpm_fast" else 0.001 if sampler.startswith("uni_pc") else 0.0
    torch.testing.assert_close(result, picture + left * (x - picture), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("path", "sigmas", "start", "expected"),
    [
        (SD3.path, (0.9, 0.7, 0.5, 0.3, 0.1), 1.0, [0.558679065132, 0.189110460323]),
        (EXPLODING, (8.0, 4.0, 2.0, 1.0, 0.3), 8.0, [0.872853609193, 0.363909125792]),
    ],
)
def test_er_sde_gives_the_numbers_of_its_authors_formula(
    path: Path, sigmas: tuple[float, ...], start: float, expected: list[float]
) -> None:
    """Third-order VP form of Cui et al.'s er_sde_solver.py, with separate σ and α and ComfyUI's 200
    points; calculated once for a toy denoiser and given noise.
    """

    def toy(x: Tensor, sigma: Tensor) -> Tensor:
        if isinstance(path, Flow):
            return torch.sin(2 * x + sigma) * 0.5
        return torch.sin(x / (1 + sigma) + sigma) * 0.5

    drawn = iter((0.3, -0.7, 1.1, 0.2))
    x = torch.tensor([1.5, -0.4], dtype=torch.float64) * start
    sampler = solver_of(SamplerChoice("er_sde"), sigmas, path).sampler
    levels = torch.tensor(sigmas, dtype=torch.float32).double()
    result = solve(sampler, x, levels, toy, lambda a, b: torch.full_like(x, next(drawn)))
    assert result.tolist() == pytest.approx(expected, abs=1e-9)


def test_lcm_noises_the_prediction_to_the_next_level() -> None:
    x, drawn = torch.tensor([0.5], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    sigmas = torch.tensor([1.0, 0.25], dtype=torch.float64)
    result = solve(of("lcm"), x, sigmas, lambda x, sigma: x * 0 + 0.8, lambda a, b: drawn)
    assert float(result) == pytest.approx(0.75 * 0.8 + 0.25 * 2.0)


def test_an_ancestral_step_has_the_noise_and_the_picture_of_its_level() -> None:
    """For any eta, the picture's share is 1 - σ', the noise's variance σ'²."""
    sigma, sigma_next = torch.tensor([0.8, 0.5], dtype=torch.float64)
    for eta in (0.0, 0.3, 1.0):
        step = SD3.path.ancestral(sigma, sigma_next, eta)
        assert float(step.scale * (1 - step.down)) == pytest.approx(0.5)
        assert float((step.scale * step.down) ** 2 + step.up**2) == pytest.approx(0.25)
    assert float(step.down) == pytest.approx(0.5 * 0.5 / 0.8)


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        # evaluates 0.9999, as log-SNR is infinite at 1
        ("dpmpp_2s_ancestral", [1.0, 0.9999, 0.5]),
        # starts at percent 0.0001 of the schedule, then halfway in log-SNR
        ("dpmpp_sde", [FIRST, None, 0.5]),
        ("dpmpp_2m_sde", [FIRST, 0.5]),
        ("euler_ancestral", [1.0, 0.5]),
    ],
)
def test_pure_noise_is_replaced_where_a_logarithm_is_taken(
    name: str, levels: list[float | None]
) -> None:
    asked = [one.sigma for one in evaluations(of(name), (1.0, 0.5, 0.0))]
    relative = math.sqrt(FIRST / (1 - FIRST))  # geometric mean with 0.5's, 1
    halfway = relative / (1 + relative)
    expected = [halfway if level is None else level for level in levels]
    assert asked == pytest.approx(expected, rel=1e-5)


# Runs


def spec(sampler: str = "euler", start: int = 0, end: int = 99, noise: bool = True) -> SamplingSpec:
    sigmas = slice_steps(schedule("simple", SD3, 6, sampler=sampler), start, end, False)
    return SamplingSpec(sampler=sampler, sigmas=sigmas, seed=5, add_noise=noise)


def velocity(step: Step) -> Tensor:
    """Returns a smooth function of model inputs."""
    return torch.sin(step.model_input * 2 + per_row(step.timestep / 300, step.x)).roll(1, -1)


def run(process: Process) -> tuple[Tensor, list[Step]]:
    steps = []
    while (step := process.next_step()) is not None:
        steps.append(step)
        process.advance(to_denoised(velocity(step), step, SD3.parametrisation))
    return process.result, steps


def start(spec: SamplingSpec, latent: Tensor) -> Process:
    return start_process(spec, latent, SD3, "cpu", torch.float32)


def test_a_run_is_the_integral_of_the_velocity() -> None:
    result, steps = run(start(spec(), torch.zeros(SHAPE)))
    sigmas = schedule("simple", SD3, 6)
    assert [float(step.timestep[0]) for step in steps] == pytest.approx(
        [1000 * sigma for sigma in sigmas[:-1]]
    )
    x = initial_noise(SHAPE, 5)  # pure noise, of variance 1
    for step, (sigma, sigma_next) in zip(steps, pairwise(sigmas), strict=True):
        torch.testing.assert_close(step.model_input, x, rtol=0, atol=1e-5)  # unscaled
        x = x + velocity(step) * (sigma_next - sigma)
    torch.testing.assert_close(result, x, rtol=0, atol=1e-5)


def test_a_picture_is_mixed_with_noise_not_covered_by_it() -> None:
    part = spec(start=3)
    _, steps = run(start(part, ORIGINAL))
    sigma = part.sigmas[0]
    torch.testing.assert_close(
        steps[0].x, (1 - sigma) * ORIGINAL + sigma * initial_noise(SHAPE, 5), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("sampler", ["euler", "dpm_2", "heun"])
def test_two_runs_that_share_a_level_are_one(sampler: str) -> None:
    """A run that ends above 0 scales its result as a latent; the next run undoes this."""
    whole, _ = run(start(spec(sampler), ORIGINAL))
    first, _ = run(start(spec(sampler, end=3), ORIGINAL))
    second, _ = run(start(spec(sampler, start=3, noise=False), first))
    torch.testing.assert_close(second, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_the_masked_part_is_the_original_on_the_path(sampler: str) -> None:
    mask = torch.zeros(8, 6)
    mask[:, :3] = 1
    part = spec(sampler, start=2)
    masked = SamplingSpec(sampler=sampler, sigmas=part.sigmas, seed=5, mask=mask)
    result, steps = run(start(masked, ORIGINAL))
    mask_noise = initial_noise(
        SHAPE, 6 if SAMPLERS[sampler.removesuffix("_gpu")].redraws_mask_noise else 5
    )
    for step in steps:
        sigma = float(step.sigma[0])
        shown = (1 - sigma) * ORIGINAL + sigma * mask_noise
        torch.testing.assert_close(step.x[..., 3:], shown[..., 3:], rtol=0, atol=1e-6)
    if sampler not in ("dpm_fast", "uni_pc", "uni_pc_bh2"):  # they end above 0
        torch.testing.assert_close(result[..., 3:], ORIGINAL[..., 3:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("scheduler", SCHEDULER_NAMES)
@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m_sde", "dpmpp_2s_ancestral", "uni_pc"])
def test_every_schedule_gives_finite_pictures(scheduler: str, sampler: str) -> None:
    request = SamplingSpec(sampler=sampler, sigmas=schedule(scheduler, SD3, 5), seed=1)
    result, _ = run(start(request, torch.zeros(SHAPE)))
    assert result.isfinite().all()


@pytest.mark.parametrize("sigmas", [(14.6, 3.0, 0.0), (0.2, 0.6, 1.0)])
def test_levels_that_a_flow_has_not_are_refused_in_one_line(sigmas: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="this model is a flow, expected levels from 1"):
        solver_of(SamplerChoice("euler"), sigmas, Flow(0.9999))


@pytest.mark.parametrize("path", ["flow", "exploding"])
def test_a_gradual_mask_opens_as_the_schedule_goes_on(path: str) -> None:
    """Four columns have masks 1, 0.6, 0.3, 0. While the remaining share of timesteps is larger than
    its mask, a column is the original at the step's level.
    """
    table = flow_table() if path == "flow" else noise_table({})
    # below the largest level, where the other path starts with more noise than its level
    sigmas = schedule("simple", table, 11)[1:]
    mask = torch.tensor([1.0, 0.6, 0.3, 0.0]).expand(1, 1, 4, 4)
    latent = torch.full((1, 4, 4, 4), 0.5)
    spec = SamplingSpec("euler", sigmas, 3, mask=mask, gradual=1.0)
    process = start_process(spec, latent, table, "cpu", torch.float32)
    noise = initial_noise(latent.shape, 3, None)
    first, last = table.timestep_at(sigmas[0]), table.timestep_at(table.sigma_min)
    shown = []
    while (step := process.next_step()) is not None:
        sigma = float(step.sigma[0])
        original = table.path.noised(latent, noise, sigma)
        masked = (step.x - original).abs().amax(dim=(0, 1, 2)) < 1e-5
        rest = (table.timestep_at(sigma) - last) / (first - last)
        # columns repainted in the last step left the original's path
        assert masked.tolist() == (shown[-1] if shown else [True] * 4), rest
        shown.append([rest > share for share in (1.0, 0.6, 0.3, 0.0)])
        process.advance(torch.full_like(step.x, -1.0))
    assert [sum(column) for column in zip(*shown, strict=True)] == [0, 4, 7, 10]
