"""Lists of noise levels by formula, and nodes that make, cut and flip them."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu
from node_calls import call, registry
from tiny_models import recipes
from torch import Tensor

from katz_graph.checks.validate import validate
from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, NodeCall
from katz_graph.core.patches import DiscreteSampling
from katz_graph.core.recipe import ModelRecipe
from katz_graph.sampling.aligned import ALIGNED_STEPS
from katz_graph.sampling.names import SAMPLER_NAMES, SAMPLERS, SamplerChoice
from katz_graph.sampling.noise_table import NoiseTable, noise_table
from katz_graph.sampling.samplers import solver_of
from katz_graph.sampling.schedules import schedule

TABLE = noise_table({})


@pytest.fixture(scope="module")
def model() -> ModelRecipe:
    return recipes("sd1")[0]


def entries(timesteps: list[int], table: NoiseTable = TABLE) -> list[float]:
    return [*(float(table.sigmas[timestep]) for timestep in timesteps), 0.0]


def assert_levels(levels: Tensor, expected: Any, tolerance: float = 2e-5) -> None:
    assert levels.dtype == torch.float32 and levels.ndim == 1
    np.testing.assert_allclose(levels.numpy(), np.array(expected), rtol=tolerance, atol=1e-9)


def test_levels_of_formulas() -> None:
    places = np.linspace(0, 1, 5)
    root = (9.0 ** (1 / 3) + places * (0.5 ** (1 / 3) - 9.0 ** (1 / 3))) ** 3
    assert_levels(
        call("KarrasScheduler", steps=5, sigma_max=9.0, sigma_min=0.5, rho=3.0), [*root, 0]
    )
    assert_levels(
        call("ExponentialScheduler", steps=5, sigma_max=9.0, sigma_min=0.5),
        [*np.geomspace(9, 0.5, 5), 0],
    )
    square = np.exp((1 - places) ** 2 * (math.log(9) - math.log(0.5)) + math.log(0.5))
    assert_levels(
        call("PolyexponentialScheduler", steps=5, sigma_max=9.0, sigma_min=0.5, rho=2.0),
        [*square, 0],
    )
    # Song et al. 2021, equation 33: ᾱ(t) = exp(-∫ β), β rising from 0.1 to 20; σ² = 1/ᾱ - 1
    times = np.linspace(1, 0.001, 4)
    products = np.exp(-(19.9 * times**2 / 2 + 0.1 * times))
    assert_levels(call("VPScheduler", steps=4), [*np.sqrt(1 / products - 1), 0], 1e-4)


def test_usual_ends_are_those_of_stable_diffusion() -> None:
    for name in ("KarrasScheduler", "ExponentialScheduler", "PolyexponentialScheduler"):
        levels = call(name, steps=1)
        assert levels.tolist() == pytest.approx([14.614642, 0])
        assert float(call(name, steps=9)[-2]) == pytest.approx(0.0291675)
    assert_levels(call("KarrasScheduler"), schedule("karras", TABLE, 20), 1e-4)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("KarrasScheduler", {"sigma_min": 0.0}),
        ("KarrasScheduler", {"rho": 0.0}),
        ("ExponentialScheduler", {"sigma_max": 0.0}),
        ("PolyexponentialScheduler", {"sigma_min": 0.0}),
        ("VPScheduler", {"eps_s": 0.0, "beta_min": 0.0}),
        ("VPScheduler", {"beta_d": 5000.0}),
    ],
)
def test_a_formula_without_levels_names_the_problem(name: str, inputs: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(inputs))):
        call(name, **inputs)


def test_schedules_of_a_model(model: ModelRecipe) -> None:
    assert tuple(
        call("BasicScheduler", model=model, scheduler="simple", steps=7).tolist()
    ) == schedule("simple", TABLE, 7)
    assert (
        tuple(
            call("BasicScheduler", model=model, scheduler="normal", steps=7, denoise=0.4).tolist()
        )
        == schedule("normal", TABLE, 17)[-8:]
    )
    assert len(call("BasicScheduler", model=model, denoise=0.0)) == 0
    # that schedule has 31 steps
    assert (
        tuple(call("BasicScheduler", model=model, scheduler="ddim_uniform", steps=30).tolist())
        == schedule("ddim_uniform", TABLE, 30)[-31:]
    )
    assert tuple(call("BetaSamplingScheduler", model=model, steps=9).tolist()) == schedule(
        "beta", TABLE, 9
    )
    # Beta(1, 1) is uniform: 999 · (1 - i/4), rounded
    assert_levels(
        call("BetaSamplingScheduler", model=model, steps=4, alpha=1.0, beta=1.0),
        entries([999, 749, 500, 250]),
    )
    with pytest.raises(InputError, match="alpha and beta above 0"):
        call("BetaSamplingScheduler", model=model, alpha=0.0)


def test_turbo_takes_tenths_of_the_training_time(model: ModelRecipe) -> None:
    assert_levels(call("SDTurboScheduler", model=model), entries([999]))
    assert_levels(call("SDTurboScheduler", model=model, steps=4), entries([999, 899, 799, 699]))
    assert_levels(call("SDTurboScheduler", model=model, steps=2, denoise=0.5), entries([499, 399]))
    assert_levels(call("SDTurboScheduler", model=model, steps=10, denoise=0.2), entries([199, 99]))


def test_a_patched_model_gives_its_own_levels(model: ModelRecipe) -> None:
    patched = replace(model, patches=(DiscreteSampling("v_prediction", zero_terminal_snr=True),))
    assert float(call("BasicScheduler", model=patched, steps=5)[0]) == pytest.approx(
        4518.7637, abs=1e-2
    )


def test_align_your_steps() -> None:
    assert_levels(call("AlignYourStepsScheduler"), [*ALIGNED_STEPS["SD1"][:-1], 0])
    # as published, rounded: research.nvidia.com/labs/toronto-ai/AlignYourSteps
    published = [14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0]
    np.testing.assert_allclose(
        call("AlignYourStepsScheduler", model_type="SDXL").numpy(), published, rtol=0.02
    )
    for kind, timesteps in {
        "SD1": [999, 850, 736, 645, 545, 455, 343, 233, 124, 24],
        "SDXL": [999, 845, 730, 587, 443, 310, 193, 116, 53, 13],
    }.items():
        assert_levels(call("AlignYourStepsScheduler", model_type=kind), entries(timesteps), 1e-6)
    doubled = call("AlignYourStepsScheduler", steps=20)
    assert_levels(doubled[::2], call("AlignYourStepsScheduler").tolist())
    assert_levels(
        doubled[1:-2:2],
        np.sqrt(np.array(ALIGNED_STEPS["SD1"])[:-1] * np.array(ALIGNED_STEPS["SD1"])[1:])[:-1],
    )
    assert_levels(call("AlignYourStepsScheduler", denoise=0.3), [*ALIGNED_STEPS["SD1"][7:10], 0])
    assert len(call("AlignYourStepsScheduler", denoise=0.0)) == 0


def test_cutting_and_turning() -> None:
    levels = torch.tensor([8.0, 4.0, 2.0, 1.0, 0.0])
    high, low = call("SplitSigmas", sigmas=levels, step=1)
    assert high.tolist() == [8, 4] and low.tolist() == [4, 2, 1, 0]
    high, low = call("SplitSigmasDenoise", sigmas=levels, denoise=0.5)
    assert high.tolist() == [8, 4, 2] and low.tolist() == [2, 1, 0]
    high, low = call("SplitSigmasDenoise", sigmas=levels, denoise=0.0)
    assert high.tolist() == levels.tolist() and low.tolist() == [0]
    turned = call("FlipSigmas", sigmas=levels)
    assert turned.tolist() == pytest.approx([0.0001, 1, 2, 4, 8])
    assert call("FlipSigmas", sigmas=levels[:3]).tolist() == [2, 4, 8]
    assert len(call("FlipSigmas", sigmas=levels[:0])) == 0
    assert call("SetFirstSigma", sigmas=levels, sigma=9.5).tolist() == [9.5, 4, 2, 1, 0]
    assert levels.tolist() == [8, 4, 2, 1, 0]


def test_levels_written_by_hand() -> None:
    assert call("ManualSigmas").tolist() == [1, 0.5]
    assert call("ManualSigmas", sigmas="14.6, 3e-1,0").tolist() == pytest.approx([14.6, 0.3, 0])
    assert len(call("ManualSigmas", sigmas="")) == 0
    for wrong in ("1, abc", "1, nan", "1, -2"):
        with pytest.raises(InputError, match=wrong.split()[1]):
            call("ManualSigmas", sigmas=wrong)


def test_samplers_with_options() -> None:
    assert call("KSamplerSelect", sampler_name="dpmpp_2m_sde_gpu") == SamplerChoice(
        "dpmpp_2m_sde_gpu"
    )
    assert call("SamplerLMS", order=2) == SamplerChoice("lms", (("order", 2),))
    on_card, on_cpu = (
        call("SamplerDPMPP_SDE", r=0.3, noise_device=device) for device in ("gpu", "cpu")
    )
    assert (
        on_card
        == on_cpu
        == SamplerChoice("dpmpp_sde", (("eta", 1.0), ("s_noise", 1.0), ("r", 0.3)))
    )
    for name in (
        "SamplerEulerAncestral",
        "SamplerDPMPP_2M_SDE",
        "SamplerDPMPP_3M_SDE",
        "SamplerER_SDE",
    ):
        choice = call(name, eta=0.25)
        assert choice.name in SAMPLERS and ("eta", 0.25) in choice.options
        solver_of(choice, (2.0, 1.0), TABLE.path)  # has these options


@pytest.mark.parametrize("node", ["KSampler", "KSamplerAdvanced", "KSamplerSelect", "StepBegin"])
def test_a_known_sampler_that_is_missing_is_refused_before_the_run_by_its_own_line(
    node: str,
) -> None:
    missing = Graph({"1": NodeCall(node, {"sampler_name": "sa_solver"})})
    problems = [
        problem for problem in validate(missing, registry()) if problem.input == "sampler_name"
    ]
    assert [problem.message for problem in problems] == [
        f"sampler 'sa_solver' is not implemented; choose one of {', '.join(SAMPLER_NAMES)}",
    ]
    unknown = Graph({"1": NodeCall(node, {"sampler_name": "eulr"})})
    (problem,) = (
        problem for problem in validate(unknown, registry()) if problem.input == "sampler_name"
    )
    assert "did you mean" in problem.message and "euler" in problem.message


@pytest.mark.parametrize(
    ("width", "height"), [(512, 512), (1024, 1024), (1040, 1072), (2048, 1024)]
)
@pytest.mark.parametrize("steps", [1, 4, 20, 50])
def test_levels_for_a_size_are_those_of_the_pipeline(width: int, height: int, steps: int) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    tokens = round(width * height / 256)
    scheduler.set_timesteps(
        sigmas=np.linspace(1.0, 1 / steps, steps), mu=compute_empirical_mu(tokens, steps)
    )
    levels = call("Flux2Scheduler", steps=steps, width=width, height=height)
    assert torch.allclose(levels, scheduler.sigmas, rtol=0, atol=1e-6)
