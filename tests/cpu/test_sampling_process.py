"""Whole sampling requests: evaluations, results, and independence of each other."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.ir.values import Step, per_row
from katz_graph.planner.sampling import active_evaluations, evaluations_of
from katz_graph.sampling.names import SAMPLER_NAMES
from katz_graph.sampling.noise import BrownianNoise, initial_noise
from katz_graph.sampling.noise_table import noise_table
from katz_graph.sampling.prediction import to_denoised
from katz_graph.sampling.process import Process, start_process
from katz_graph.sampling.schedules import schedule, slice_steps
from katz_graph.sampling.spec import SamplingSpec

torch.set_num_threads(1)
TABLE = noise_table({})
SHAPE = (2, 4, 8, 6)
EMPTY = torch.zeros(SHAPE)
ORIGINAL = initial_noise(SHAPE, 99) * 0.6


EVALUATIONS = {  # for 6 steps, the last one to 0
    **dict.fromkeys(("heun", "dpm_2", "dpm_2_ancestral", "dpmpp_2s_ancestral", "dpmpp_sde"), 11),
    "heunpp2": 15,
}


def spec(
    sampler: str = "euler", steps: int = 6, seed: int = 5, denoise: float = 1.0
) -> SamplingSpec:
    return SamplingSpec(
        sampler=sampler, sigmas=schedule("karras", TABLE, steps, denoise, sampler), seed=seed
    )


def start(
    spec: SamplingSpec, latent: Tensor = EMPTY, dtype: torch.dtype = torch.float32
) -> Process:
    return start_process(spec, latent, TABLE, "cpu", dtype)


def model(step: Step) -> Tensor:
    """Returns a smooth function of model inputs, as an epsilon."""
    return torch.sin(step.model_input.float() * 2 + per_row(step.timestep / 300, step.x)).roll(
        1, -1
    )


def run(process: Process) -> tuple[Tensor, list[Step]]:
    steps = []
    while (step := process.next_step()) is not None:
        steps.append(step)
        process.advance(to_denoised(model(step), step, "epsilon"))
    return process.result, steps


@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_the_list_of_evaluations_is_as_requested(sampler: str) -> None:
    _, steps = run(process := start(spec(sampler)))
    assert [s.sigma.tolist() for s in steps] == [
        [e.sigma] * len(EMPTY) for e in process.evaluations
    ]
    assert evaluations_of(spec(sampler), TABLE) == process.evaluations
    assert len(steps) == EVALUATIONS.get(sampler.removesuffix("_gpu"), 6)


@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_interleaved_requests_give_the_bits_of_running_alone(sampler: str) -> None:
    one, other = spec(sampler, steps=5, seed=1), spec("euler_ancestral", steps=7, seed=2)
    alone = [run(start(one))[0], run(start(other))[0]]
    together = [start(one), start(other)]
    while any(process.next_step() for process in together):
        for process in together:
            if (step := process.next_step()) is not None:
                process.advance(to_denoised(model(step), step, "epsilon"))
    assert all(
        torch.equal(process.result, expected)
        for process, expected in zip(together, alone, strict=True)
    )


def test_ddim_is_euler_without_a_mask_and_redraws_the_noise_under_one() -> None:
    assert torch.equal(run(start(spec("ddim")))[0], run(start(spec("euler")))[0])
    mask = torch.zeros(8, 6)
    _, ddim = run(start(replace(spec("ddim"), mask=mask), ORIGINAL))
    _, euler = run(start(replace(spec("euler"), mask=mask), ORIGINAL))
    assert torch.equal(ddim[2].x, ORIGINAL + initial_noise(SHAPE, 6) * float(ddim[2].sigma[0]))
    assert torch.equal(euler[2].x, ORIGINAL + initial_noise(SHAPE, 5) * float(euler[2].sigma[0]))


@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
def test_a_mask_leaves_the_masked_part_unchanged(sampler: str) -> None:
    mask = torch.zeros(8, 6)
    mask[2:5, 1:4] = 1
    result, steps = run(start(replace(spec(sampler, denoise=0.8), mask=mask), ORIGINAL))
    masked = (mask == 0).expand(SHAPE)
    # a step to 0 may be x - (x - original), which rounds; two samplers stop before it, with that
    # much noise left
    tolerance = {"dpm_fast": 4 * TABLE.sigma_min, "uni_pc": 0.005, "uni_pc_bh2": 0.005}.get(
        sampler, 1e-6
    )
    torch.testing.assert_close(result[masked], ORIGINAL[masked], rtol=0, atol=tolerance)
    assert (result[~masked] - ORIGINAL[~masked]).abs().mean() > 0.1
    assert all(
        torch.equal(s.x[masked].isfinite(), torch.ones_like(s.x[masked], dtype=torch.bool))
        for s in steps
    )


def test_model_inputs() -> None:
    _, steps = run(start(spec(steps=4), dtype=torch.float16))
    first = steps[0]
    assert first.model_input.dtype == torch.float16 and first.x.dtype == torch.float32
    assert (first.timestep == 999).all() and (steps[-1].timestep == 0).all()
    torch.testing.assert_close(first.model_input, initial_noise(SHAPE, 5).half())


def test_an_image_to_image_run_starts_from_the_latent_at_its_noise_level() -> None:
    request = spec(denoise=0.5)
    first = start(request, ORIGINAL).next_step()
    assert first is not None
    torch.testing.assert_close(first.x, ORIGINAL + initial_noise(SHAPE, 5) * request.sigmas[0])


def test_the_second_half_continues_the_first() -> None:
    whole = spec(steps=6)
    first = replace(whole, sigmas=slice_steps(whole.sigmas, 0, 3, force_full_denoise=False))
    second = replace(
        whole, sigmas=slice_steps(whole.sigmas, 3, 10000, force_full_denoise=True), add_noise=False
    )
    assert torch.equal(run(start(second, run(start(first))[0]))[0], run(start(whole))[0])


def test_a_run_without_steps_leaves_the_latent() -> None:
    process = start(replace(spec(), sigmas=()), ORIGINAL)
    assert process.next_step() is None and process.evaluations == ()
    assert torch.equal(process.result, ORIGINAL)


def test_stochastic_samplers_follow_the_path_of_the_seed() -> None:
    """Without a model, each step adds the seed's Brownian path between its levels."""
    request = replace(spec("dpmpp_2m_sde", seed=11), sigmas=(8.0, 2.0, 0.5, 0.0))
    process = start(request)
    steps = []
    while (step := process.next_step()) is not None:
        steps.append(step.x)
        process.advance(EMPTY)
    path = BrownianNoise(SHAPE, 11, torch.tensor(request.sigmas), "cpu")
    sigma, sigma_next = torch.tensor(8.0), torch.tensor(2.0)
    # Ornstein-Uhlenbeck: with denoised = 0, x' = (σ'/σ)² x + σ' sqrt(1 - (σ'/σ)²) z
    torch.testing.assert_close(
        steps[1], steps[0] / 16 + 2 * math.sqrt(15 / 16) * path(sigma, sigma_next)
    )
    other = run(start(replace(request, seed=12)))[0]
    assert not torch.equal(other, run(start(request))[0])


def test_options_of_a_sampler_are_part_of_the_request() -> None:
    calm = replace(spec("euler_ancestral"), options=(("eta", 0.0),))
    torch.testing.assert_close(
        run(start(calm))[0], run(start(spec("euler")))[0], rtol=1e-5, atol=1e-5
    )
    assert not torch.equal(run(start(spec("euler_ancestral")))[0], run(start(calm))[0])
    with pytest.raises(InputError, match="no option 'eta'"):
        evaluations_of(replace(spec("euler"), options=(("eta", 0.0),)), TABLE)


def test_a_name_of_the_graphics_card_gives_the_bits_of_the_plain_one() -> None:
    for name in (name for name in SAMPLER_NAMES if name.endswith("_gpu")):
        assert torch.equal(
            run(start(spec(name)))[0], run(start(spec(name.removesuffix("_gpu"))))[0]
        )


def test_batch_index_repeats_one_picture_of_a_batch() -> None:
    batch = run(start(replace(spec("ddim"), batch_index=(0, 1))))[0]
    single = run(start(replace(spec("ddim"), batch_index=(1,)), EMPTY[:1]))[0]
    assert torch.equal(single[0], batch[1])


def test_v_prediction_models_are_asked_the_same_and_read_otherwise() -> None:
    table = noise_table({"prediction_type": "v_prediction"})
    picture = ORIGINAL
    process = start_process(spec(), EMPTY, table, "cpu", torch.float32)
    while (step := process.next_step()) is not None:
        sigma = float(step.sigma[0])
        noise = (step.x - picture) / sigma
        velocity = (noise - sigma * picture) / math.sqrt(1 + sigma**2)
        process.advance(to_denoised(velocity, step, "v_prediction"))
    torch.testing.assert_close(process.result, picture, rtol=0, atol=1e-4)


def test_the_next_step_waits_and_the_result_comes_last() -> None:
    process = start(spec(steps=1))
    step = process.next_step()
    assert step is not None and process.next_step() is step
    with pytest.raises(RuntimeError, match="0 of 1"):
        _ = process.result
    process.advance(EMPTY)
    with pytest.raises(RuntimeError, match="done"):
        process.advance(EMPTY)
    with pytest.raises(InputError, match="sa_solver"):
        start(replace(spec(), sampler="sa_solver"))


def test_a_window_is_open_between_its_two_noise_levels() -> None:
    # timesteps 999, 749.25, 499.5, 249.75, 0
    request = replace(spec(), sigmas=schedule("normal", TABLE, 5))
    assert active_evaluations(request, TABLE, 0.0, 1.0) == (True,) * 5
    assert active_evaluations(request, TABLE, 0.2, 0.6) == (False, True, True, False, False)
    # 0.5 is timestep 499.5
    assert active_evaluations(request, TABLE, 0.0, 0.5) == (True, True, True, False, False)
    assert (
        active_evaluations(replace(request, sampler="heun"), TABLE, 0.7, 1.0)
        == (False,) * 5 + (True,) * 4
    )
    assert active_evaluations(request, TABLE, 0.3, 0.4) == (False,) * 5
