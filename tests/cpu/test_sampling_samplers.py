"""Samplers on Gaussian data, steps by hand, and properties known before a run."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from gaussian_data import MEAN, SPREAD, flowed, fresh_noise, gaussian_denoiser, karras, solve
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.sampling.names import (
    NOT_IMPLEMENTED,
    SAMPLER_NAMES,
    SAMPLERS,
    SamplerChoice,
    require_sampler,
)
from katz_graph.sampling.noise import BrownianNoise
from katz_graph.sampling.path import VarianceExploding
from katz_graph.sampling.samplers import BoundSampler, Solver, evaluations, solver_of
from katz_graph.sampling.solvers import stochastic

torch.set_num_threads(1)
DOUBLE = torch.float64
LEVELS = (4.0, 2.0, 1.0)
EXPLODING = VarianceExploding(sigma_max=14.6)


def solver(name: str, **options: float | str) -> Solver:
    return solver_of(SamplerChoice(name, tuple(options.items())), LEVELS, EXPLODING)


def of(name: str, **options: float | str) -> BoundSampler:
    return solver(name, **options).sampler


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=DOUBLE)


EXACT = 20_000  # points of er_sde's integrals; its 200 leave a small first-order error

FLOW_SOLVERS = {
    "euler": (of("euler"), 1),
    "heun": (of("heun"), 2),
    "heunpp2": (of("heunpp2"), 1),  # not a quadrature: see its docstring
    "dpm_2": (of("dpm_2"), 2),
    "dpmpp_2m": (of("dpmpp_2m"), 2),
    # the following start or end with a step of order 1, which limits the order
    "dpm_fast": (of("dpm_fast"), 2),
    "ipndm": (of("ipndm"), 2),
    "uni_pc": (of("uni_pc"), 2),
    "uni_pc_bh2": (of("uni_pc_bh2"), 2),
    "res_multistep": (of("res_multistep"), 2),
    "gradient_estimation": (of("gradient_estimation"), 1),
    # so do these, but the flow is so straight at strong noise that their own order shows
    "lms": (of("lms"), 3),
    "deis": (of("deis"), 3),
    # without noise, ancestral and stochastic samplers solve the flow
    "euler_ancestral": (of("euler_ancestral", eta=0.0), 1),
    "dpm_2_ancestral": (of("dpm_2_ancestral", eta=0.0), 2),
    "dpmpp_2s_ancestral": (of("dpmpp_2s_ancestral", eta=0.0), 2),
    "dpmpp_sde": (of("dpmpp_sde", eta=0.0), 2),
    "dpmpp_2m_sde": (of("dpmpp_2m_sde", eta=0.0), 2),
    "dpmpp_2m_sde_heun": (of("dpmpp_2m_sde_heun", eta=0.0), 2),
    "dpmpp_3m_sde": (of("dpmpp_3m_sde", eta=0.0), 2),
    "er_sde": (of("er_sde", eta=0.0), 2),
    "er_sde of one stage": (of("er_sde", eta=0.0, max_stage=1), 1),
    "er_sde of two stages": (of("er_sde", eta=0.0, max_stage=2), 2),
    "er_sde as an ODE": (of("er_sde", solver_type="ODE"), 2),
}


@pytest.mark.parametrize("name", FLOW_SOLVERS)
def test_convergence_has_the_order_of_the_paper(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stochastic, "INTEGRATION_POINTS", EXACT)
    sampler, order = FLOW_SOLVERS[name]
    # dpm_fast ends alike if the number is 1 modulo 3
    errors = [
        float(solve(sampler, number(7.0), karras(10, 0.1, steps))) - flowed(7.0, 10, 0.1)
        for steps in (100, 202, 406)
    ]
    observed = [math.log(abs(coarse / fine), 2.01) for coarse, fine in pairwise(errors)]
    # neighbouring orders differ by one
    assert observed == pytest.approx([order, order], abs=0.4)
    assert abs(errors[-1]) < 0.03


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - {"dpm_fast", "uni_pc", "uni_pc_bh2"}))
def test_to_zero_noise_the_last_prediction_is_the_picture(name: str) -> None:
    x = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(1)) * 5
    picture = torch.full_like(x, 0.7)
    result = solve(of(name), x, torch.tensor([5.0, 2.0, 0.5, 0.0]), lambda x, sigma: picture)
    torch.testing.assert_close(result, picture, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["uni_pc", "uni_pc_bh2"])
def test_unipc_stops_a_thousandth_before_zero(name: str) -> None:
    x = torch.tensor([9.0])
    result = solve(
        of(name), x, torch.tensor([5.0, 2.0, 0.5, 0.0]), lambda x, sigma: torch.full_like(x, 0.7)
    )
    torch.testing.assert_close(result, 0.7 + (x - 0.7) * 0.001 / 5)


def test_dpm_fast_heeds_the_ends_and_the_number_of_steps_only() -> None:
    x = torch.tensor([9.0])
    one = solve(of("dpm_fast"), x, torch.tensor([5.0, 2.0, 1.0, 0.5, 0.1, 0.0]))
    other = solve(of("dpm_fast"), x, torch.tensor([5.0, 4.0, 0.3, 0.2, 0.1, 0.0]))
    assert torch.equal(one, other)
    assert [e.step for e in evaluations(of("dpm_fast"), (5.0, 4.0, 3.0, 2.0, 1.0, 0.9, 0.0))] == [
        0,
        0,
        0,
        1,
        1,
        2,
    ]


def test_euler_is_ddim() -> None:
    """Song et al. 2021, equation 12 with sigma_t = 0, in its own variables: z = sqrt(ᾱ) x."""
    sigmas = np.array([12.0, 6.0, 2.5, 0.8, 0.2])
    z = 9.0 / math.sqrt(1 + sigmas[0] ** 2)
    for sigma, sigma_next in pairwise(sigmas):
        alpha, alpha_next = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
        picture = float(gaussian_denoiser(number(z / math.sqrt(alpha)), torch.tensor(sigma)))
        epsilon = (z - math.sqrt(alpha) * picture) / math.sqrt(1 - alpha)
        z = math.sqrt(alpha_next) * picture + math.sqrt(1 - alpha_next) * epsilon
    ours = solve(of("ddim"), number(9.0), torch.from_numpy(sigmas))
    assert float(ours) == pytest.approx(z * math.sqrt(1 + sigmas[-1] ** 2), rel=1e-12)


def test_ddpm_draws_from_the_posterior() -> None:
    """Ho et al. 2020, equations 6 and 7, in its own variables, β = 1 - ᾱ_t / ᾱ_t-1."""
    sigmas = np.array([12.0, 6.0, 2.5, 0.8, 0.2, 0.0])
    x = torch.tensor([9.0, -4.0], dtype=DOUBLE)
    z, noise = x / math.sqrt(1 + sigmas[0] ** 2), fresh_noise(x, 3)
    for sigma, sigma_next in pairwise(sigmas):
        product, product_next = 1 / (1 + sigma**2), 1 / (1 + sigma_next**2)
        alpha = product / product_next
        picture = gaussian_denoiser(z / math.sqrt(product), torch.tensor(sigma))
        z = (
            math.sqrt(product_next) * (1 - alpha) / (1 - product) * picture
            + math.sqrt(alpha) * (1 - product_next) / (1 - product) * z
        )
        if sigma_next > 0:
            z = z + math.sqrt((1 - product_next) / (1 - product) * (1 - alpha)) * noise(x, x)
    ours = solve(of("ddpm"), x, torch.from_numpy(sigmas), noise=fresh_noise(x, 3))
    torch.testing.assert_close(ours, z, rtol=1e-12, atol=1e-12)


def test_lcm_adds_new_noise_to_the_prediction() -> None:
    x = torch.tensor([9.0, -4.0], dtype=DOUBLE)
    draws, sigmas = fresh_noise(x, 3), torch.tensor([4.0, 1.0, 0.0], dtype=DOUBLE)
    again = gaussian_denoiser(x, sigmas[0]) + draws(x, x) * 1.0
    ours = solve(of("lcm"), x, sigmas, noise=fresh_noise(x, 3))
    assert torch.equal(ours, gaussian_denoiser(again, sigmas[1]))


def test_one_heun_step_by_hand() -> None:
    # denoised = 0: dx/dσ = x/σ, 8 at σ 4 is 6 at σ 3, slopes 2 and 2
    assert (
        float(
            solve(of("heun"), torch.tensor(8.0), torch.tensor([4.0, 3.0]), lambda x, sigma: x * 0)
        )
        == 6.0
    )
    # denoised = 1 at σ 4 and 3 at σ 2: slopes (9-1)/4 = 2 and (5-3)/2 = 1, so 9 - 2 · 1.5
    answers = {4.0: 1.0, 2.0: 3.0}
    assert (
        float(
            solve(
                of("heun"),
                torch.tensor(9.0),
                torch.tensor([4.0, 2.0]),
                lambda x, sigma: torch.tensor(answers[float(sigma)]),
            )
        )
        == 6.0
    )


def test_one_heunpp2_step_by_hand() -> None:
    """At σ 4, 2, 1: slopes 2, 0, 1 with weights 1 - 2/12 - 1/12, 2/12, 1/12."""
    answers = {4.0: 1.0, 2.0: 5.0, 1.0: 4.0}
    seen: list[Tensor] = []

    def answer(x: Tensor, sigma: Tensor) -> Tensor:
        seen.append(x)
        return torch.tensor(answers.get(float(sigma), 0.0))

    solve(of("heunpp2"), torch.tensor(9.0), torch.tensor([4.0, 2.0, 1.0, 0.5]), answer)
    assert [float(x) for x in seen[:3]] == [9.0, 5.0, 5.0]
    assert float(seen[3]) == pytest.approx(9 - 2 * (2 * 9 / 12 + 0 * 2 / 12 + 1 / 12))


def test_two_dpmpp_2m_steps_by_hand() -> None:
    """σ 4, 2, 1 gives h = ln 2 twice: the second step uses 1.5 D₁ - 0.5 D₀."""
    answers = {4.0: 1.0, 2.0: 3.0}
    result = solve(
        of("dpmpp_2m"),
        torch.tensor(8.0),
        torch.tensor([4.0, 2.0, 1.0]),
        lambda x, sigma: torch.tensor(answers[float(sigma)]),
    )
    after_first = 0.5 * 8 + 0.5 * 1
    assert float(result) == pytest.approx(0.5 * after_first + 0.5 * (1.5 * 3 - 0.5 * 1), rel=1e-6)


def test_gradient_estimation_by_hand() -> None:
    """Slopes 2 at σ 4 and 1 at σ 2: the second step follows 2 · 1 - 2 = 0."""
    answers = {4.0: 1.0, 2.0: 3.0}
    sigmas = torch.tensor([4.0, 2.0, 1.0])
    assert (
        float(
            solve(
                of("gradient_estimation"),
                torch.tensor(9.0),
                sigmas,
                lambda x, sigma: torch.tensor(answers[float(sigma)]),
            )
        )
        == 5.0
    )


@pytest.mark.parametrize(
    ("name", "degree"), [("lms", 3), ("deis", 2), ("ipndm", 3), ("res_multistep", 1)]
)
def test_once_under_way_a_multistep_solver_is_exact_for_polynomials(name: str, degree: int) -> None:
    """This defines its order: slopes (predictions, for res_multistep) are a polynomial in the
    solver's time.
    """
    sigmas = torch.linspace(10, 1, 10, dtype=DOUBLE) if name == "ipndm" else karras(10, 1, 9)
    beta_d = 2 * (math.log1p(0.002**2) / 1e-3 - math.log1p(80**2)) / (1e-3 - 1)
    beta_min = math.log1p(80**2) - beta_d / 2
    clocks = {
        "lms": lambda sigma: sigma / 10,
        "ipndm": lambda sigma: sigma / 10,
        "deis": lambda sigma: (
            (np.sqrt(beta_min**2 + 2 * beta_d * np.log1p(sigma**2)) - beta_min) / beta_d
        ),
        "res_multistep": lambda sigma: -np.log(sigma),
    }
    polynomial = np.polynomial.Polynomial([0.7, -1.3, 2.1, -0.9][: degree + 1])
    points: list[float] = []

    def answer(x: Tensor, sigma: Tensor) -> Tensor:
        points.append(float(x))
        value = float(polynomial(clocks[name](float(sigma))))
        return number(value) if name == "res_multistep" else x - sigma * value

    points.append(float(solve(of(name), number(3.0), sigmas, answer)))
    for step in range(degree, 9):
        first, last = float(sigmas[step]), float(sigmas[step + 1])
        # midpoint rule for ∫ slope dσ, or for the flow with that prediction in u = x/σ: du/dσ =
        # -D/σ²
        middles = first + (np.arange(200_000) + 0.5) / 200_000 * (last - first)
        slopes = polynomial(clocks[name](middles))
        if name == "res_multistep":
            expected = last * (
                points[step] / first - np.sum(slopes / middles**2) * (last - first) / 200_000
            )
        else:
            expected = points[step] + np.sum(slopes) * (last - first) / 200_000
        assert points[step + 1] == pytest.approx(expected, abs=1e-8), step


def test_lms_of_order_one_is_euler() -> None:
    x, sigmas = number(6.0), karras(9, 0.5, 5)
    torch.testing.assert_close(
        solve(of("lms", order=1), x, sigmas), solve(of("euler"), x, sigmas), rtol=1e-12, atol=0
    )


def test_an_ancestral_step_splits_the_variance() -> None:
    """With denoised = 0, x' = x σ_down/σ + noise σ_up; from 2 to 1: σ_up² = 1 · (4 - 1) / 4,
    σ_down² = 1/4.
    """
    x = torch.tensor([6.0])
    result = solve(
        of("euler_ancestral"),
        x,
        torch.tensor([2.0, 1.0]),
        lambda x, sigma: x * 0,
        fresh_noise(x, 5),
    )
    assert float(result) == pytest.approx(
        6.0 / 4 + float(fresh_noise(x, 5)(x, x)) * math.sqrt(0.75), rel=1e-6
    )


STOCHASTIC = sorted(
    name for name, entry in SAMPLERS.items() if entry.noise != "none" and name != "lcm"
)


@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic_sampling_reaches_the_distribution_of_the_data(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    samples, steps = 20_000, 60
    sigmas = torch.cat([karras(20, 0.01, steps, torch.float32), torch.zeros(1)])
    noise = solver(name).noise_source((samples,), 1, sigmas, "cpu")
    result = solve(of(name), torch.randn(samples, generator=generator) * 20, sigmas, noise=noise)
    # standard errors: 0.0035 of the mean, 0.5 % of the spread; first-order discretisation adds
    # about 7 % at 60 steps
    first_order = name in ("euler_ancestral", "ddpm")
    assert float(result.mean()) == pytest.approx(MEAN, abs=0.015)
    assert float(result.std()) == pytest.approx(SPREAD, rel=0.1 if first_order else 0.03)


def test_a_brownian_path_is_the_same_whatever_is_asked_of_it() -> None:
    levels = torch.tensor([10.0, 4.0, 1.0, 0.1, 0.0])
    high, middle, low = torch.tensor([10.0, 4.0, 1.0])
    path = BrownianNoise((5000,), 3, levels, "cpu")
    whole, first, second = path(high, low), path(high, middle), path(middle, low)
    torch.testing.assert_close(
        whole * 3, first * math.sqrt(6) + second * math.sqrt(3), rtol=0, atol=1e-5
    )
    assert torch.equal(BrownianNoise((5000,), 3, levels[[0, 3, 4]], "cpu")(middle, low), second)
    assert not torch.equal(BrownianNoise((5000,), 4, levels, "cpu")(middle, low), second)
    for draw in (whole, first, second):  # standard errors 0.014 and 0.01
        assert float(draw.mean()) == pytest.approx(0, abs=0.06) and float(
            draw.std()
        ) == pytest.approx(1, abs=0.04)
    assert abs(float((first * second).mean())) < 0.06


@pytest.mark.filterwarnings("error")
def test_a_brownian_path_takes_the_ends_of_any_schedule_without_a_warning() -> None:
    for high, low in ((14.614643, 0.0291675), (14.6146412, 0.029167158), (700.0, 0.002)):
        levels = torch.tensor([high, low, 0.0])
        assert BrownianNoise((2,), 0, levels, "cpu")(levels[0], levels[1]).isfinite().all()


EVALUATIONS = {
    "heun": 2,
    "dpm_2": 2,
    "dpm_2_ancestral": 2,
    "dpmpp_2s_ancestral": 2,
    "dpmpp_sde": 2,
    "heunpp2": 3,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_list_of_evaluations_is_known_before(name: str) -> None:
    """Steps have equally many evaluations, except the last (to 0), one, and heunpp2's last but one,
    two.
    """
    sigmas = (8.0, 4.0, 2.0, 1.0, 0.5, 0.0)
    listed = evaluations(of(name), sigmas)
    each = EVALUATIONS.get(name, 1)
    assert len(listed) == (3 * 3 + 2 + 1 if name == "heunpp2" else 4 * each + 1)
    assert [e.index for e in listed] == list(range(len(listed))) and listed[0].sigma == 8.0
    if name != "dpm_fast":
        assert [next(e.sigma for e in listed if e.step == step) for step in range(5)] == list(
            sigmas[:-1]
        )
    for short in ((), (5.0,), (0.0,)):
        assert evaluations(of(name), short) == ()
    for short in ((5.0, 0.0), (5.0, 2.0), (5.0, 2.0, 0.0)):
        assert all(math.isfinite(e.sigma) for e in evaluations(of(name), short)) and evaluations(
            of(name), short
        )


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_few_steps_give_a_picture(name: str, steps: int) -> None:
    x = torch.tensor([40.0, -25.0])
    for last in (0.0, 0.1):
        sigmas = torch.tensor([14.6, *(4.0, 1.0, 0.3)[: steps - 1], last])
        noise = solver(name).noise_source(x.shape, 1, sigmas, "cpu")
        result = solve(of(name), x, sigmas, noise=noise)
        # steps never move away from the data
        assert result.isfinite().all() and float(result.abs().max()) < 40


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_computes_without_reading_the_latent(name: str) -> None:
    """On the meta device, noise levels stay on the CPU, the latent on its device, and no step
    synchronises.
    """
    x = torch.zeros(2, 3, device="meta")
    result = solve(
        of(name),
        x,
        torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5, 0.0]),
        lambda x, sigma: x * 0.5,
        lambda sigma, sigma_next: x + 1,
    )
    assert (
        result.device.type == "meta" and result.shape == x.shape and result.dtype == torch.float32
    )


def test_offered_names_are_implemented_and_others_refused_by_name() -> None:
    assert all(solver(name) for name in SAMPLER_NAMES)
    assert (
        set(SAMPLER_NAMES).isdisjoint(NOT_IMPLEMENTED)
        and len({*SAMPLER_NAMES, *NOT_IMPLEMENTED}) >= 44
    )
    with pytest.raises(InputError, match=r"'sa_solver' is not implemented.*euler"):
        require_sampler("sa_solver")
    with pytest.raises(InputError, match="'oiler' does not exist"):
        require_sampler("oiler")


@pytest.mark.parametrize(
    ("choice", "sigmas", "expected"),
    [
        (
            SamplerChoice("euler", (("eta", 1.0),)),
            LEVELS,
            "'euler' has no option 'eta'; it has none",
        ),
        (
            SamplerChoice("dpmpp_sde", (("order", 2),)),
            LEVELS,
            "no option 'order'; it has eta, s_noise, r",
        ),
        (SamplerChoice("lms"), (2.0, 2.0, 1.0), "two equal sigmas"),
        (SamplerChoice("euler"), (2.0, math.nan, 1.0), "finite"),
        (SamplerChoice("euler"), (2.0, -1.0), "not negative"),
        (SamplerChoice("euler"), (2.0, 0.0, 1.0), "only be the last"),
        (SamplerChoice("euler_ancestral"), (1.0, 2.0), "must decrease.*euler"),
    ],
)
def test_unsupported_sampler_options_are_reported(
    choice: SamplerChoice, sigmas: tuple[float, ...], expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        solver_of(choice, sigmas, EXPLODING)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("dpmpp_sde", "r", 0.0), ("dpmpp_sde", "r", 1.5), ("dpmpp_2m_sde", "solver_type", "x")],
)
def test_an_option_out_of_range_is_reported_when_the_evaluations_are_listed(
    name: str, option: str, value: float | str
) -> None:
    with pytest.raises(InputError, match=option):
        evaluations(of(name, **{option: value}), LEVELS)


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, entry in SAMPLERS.items()
        if entry.noise == "none" and name not in ("dpm_fast",)
    ),
)
def test_the_flow_can_be_followed_upwards(name: str) -> None:
    """FlipSigmas gives rising levels. They are close here, for first-order samplers."""
    up = solve(of(name), number(0.8), karras(0.1, 10, 200))
    assert float(up) == pytest.approx(flowed(0.8, 0.1, 10), rel=0.1)


def test_options_reach_the_sampler() -> None:
    x, sigmas = torch.tensor([6.0]), torch.tensor([2.0, 1.0])
    calm = solve(of("euler_ancestral", s_noise=0.0), x, sigmas, lambda x, sigma: x * 0)
    assert float(calm) == pytest.approx(6.0 / 4)
    noisy = partial(solve, of("euler_ancestral", eta=0.5), x, sigmas, lambda x, sigma: x * 0)
    up = 0.5 * math.sqrt(0.75)
    assert float(noisy()) == pytest.approx(
        3 * math.sqrt(1 - up**2) + up * float(fresh_noise(x)(x, x)), rel=1e-6
    )
