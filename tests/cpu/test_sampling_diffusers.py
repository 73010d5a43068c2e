"""A diffusers scheduler in our interface gives the bits of the loop in diffusers' pipelines."""

import inspect
from dataclasses import replace
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.ir.values import Step
from katz_graph.planner.sampling import active_evaluations, evaluations_of
from katz_graph.sampling.noise import initial_noise
from katz_graph.sampling.noise_table import noise_table
from katz_graph.sampling.process import Process, start_process
from katz_graph.sampling.spec import DiffusersSpec

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
STABLE_DIFFUSION = {
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "steps_offset": 1,
}
TABLE = noise_table(STABLE_DIFFUSION)
SHAPE = (1, 4, 8, 8)
ORIGINAL = initial_noise(SHAPE, 3)
SCHEDULERS: list[tuple[str, dict[str, Any]]] = [
    ("EulerDiscreteScheduler", {}),
    ("EulerAncestralDiscreteScheduler", {}),
    ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False}),
    ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    ("DPMSolverMultistepScheduler", {"algorithm_type": "sde-dpmsolver++"}),
    ("UniPCMultistepScheduler", {}),
    ("HeunDiscreteScheduler", {}),
    ("PNDMScheduler", {"skip_prk_steps": True}),
    ("LMSDiscreteScheduler", {}),
]


def model(model_input: Tensor, timestep: float) -> Tensor:
    return torch.sin(model_input * 2 + timestep / 300).roll(1, -1)


def plain_loop(
    name: str, config: dict[str, Any], steps: int, seed: int, strength: float
) -> tuple[Tensor, list[float]]:
    """Follows StableDiffusionPipeline and StableDiffusionImg2ImgPipeline."""
    scheduler = getattr(diffusers, name)(**STABLE_DIFFUSION, **config)
    generator = torch.Generator("cpu").manual_seed(seed)
    scheduler.set_timesteps(steps)
    timesteps = scheduler.timesteps
    noise = torch.randn(SHAPE, generator=generator)
    if strength < 1:
        begin = max(steps - min(int(steps * strength), steps), 0) * scheduler.order
        timesteps = timesteps[begin:]
        scheduler.set_begin_index(begin) if hasattr(scheduler, "set_begin_index") else None
        latents = scheduler.add_noise(ORIGINAL, noise, timesteps[:1])
    else:
        latents = noise * scheduler.init_noise_sigma
    extra = (
        {"generator": generator}
        if "generator" in inspect.signature(scheduler.step).parameters
        else {}
    )
    for t in timesteps:
        output = model(scheduler.scale_model_input(latents, t), float(t))
        latents = scheduler.step(output, t, latents, **extra).prev_sample
    return latents, [float(t) for t in timesteps]


def run(process: Process) -> tuple[Tensor, list[Step]]:
    steps = []
    while (step := process.next_step()) is not None:
        steps.append(step)
        process.advance(model(step.model_input, float(step.timestep[0])))
    return process.result, steps


def spec(name: str, config: dict[str, Any], strength: float = 1.0) -> DiffusersSpec:
    return DiffusersSpec(
        name, steps=8, seed=11, scheduler_config={**STABLE_DIFFUSION, **config}, strength=strength
    )


def start(spec: DiffusersSpec, dtype: torch.dtype = torch.float32) -> Process:
    return start_process(spec, ORIGINAL, TABLE, "cpu", dtype)


@pytest.mark.parametrize("strength", [1.0, 0.6])
@pytest.mark.parametrize(("name", "config"), SCHEDULERS)
def test_bit_equal_to_the_loop_of_the_pipelines(
    name: str, config: dict[str, Any], strength: float
) -> None:
    expected, timesteps = plain_loop(name, config, steps=8, seed=11, strength=strength)
    result, steps = run(process := start(spec(name, config, strength)))
    assert torch.equal(result, expected)
    assert [set(step.timestep.tolist()) for step in steps] == [{timestep} for timestep in timesteps]
    assert [set(step.sigma.tolist()) for step in steps] == [
        {evaluation.sigma} for evaluation in process.evaluations
    ]
    assert evaluations_of(spec(name, config, strength), TABLE) == process.evaluations


def test_the_whole_picture_of_a_real_pipeline() -> None:
    """The latents are StableDiffusionPipeline's own, with a miniature UNet and no text encoder."""
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=2,
        norm_num_groups=4,
    ).eval()
    vae = diffusers.AutoencoderKL(
        block_out_channels=(4, 4, 4, 4), norm_num_groups=1, **four_levels()
    )
    name, config = "EulerAncestralDiscreteScheduler", STABLE_DIFFUSION
    pipeline = diffusers.StableDiffusionPipeline(
        vae,
        None,
        None,
        unet,
        getattr(diffusers, name)(**config),
        None,
        None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    prompt = initial_noise((1, 77, 8), 1)
    expected = pipeline(
        prompt_embeds=prompt,
        num_inference_steps=3,
        guidance_scale=1.0,
        height=64,
        width=64,
        generator=torch.Generator("cpu").manual_seed(4),
        output_type="latent",
    ).images
    process = start(DiffusersSpec(name, steps=3, seed=4, scheduler_config=config))
    with torch.no_grad():
        while (step := process.next_step()) is not None:
            process.advance(
                unet(step.model_input, step.timestep, encoder_hidden_states=prompt).sample
            )
    assert torch.equal(process.result, expected)


def four_levels() -> dict[str, tuple[str, ...]]:
    return {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
    }


def test_a_second_evaluation_belongs_to_the_same_step() -> None:
    listed = evaluations_of(spec("HeunDiscreteScheduler", {}), TABLE)
    assert [e.step for e in listed] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]


def test_two_requests_with_one_scheduler_do_not_meet() -> None:
    first, second = (
        spec("DPMSolverMultistepScheduler", {}),
        replace(spec("DPMSolverMultistepScheduler", {}), seed=12),
    )
    alone = [run(start(first))[0], run(start(second))[0]]
    together = [start(first), start(second)]
    while together[0].next_step() is not None:
        for process in together:
            step = process.next_step()
            assert step is not None
            process.advance(model(step.model_input, float(step.timestep[0])))
    assert all(
        torch.equal(process.result, expected)
        for process, expected in zip(together, alone, strict=True)
    )


def test_sigmas_are_those_of_the_noise_table() -> None:
    """Schedulers based on timesteps (DDIM) and on sigmas (Euler) report the same levels."""
    for name in ("DDIMScheduler", "EulerDiscreteScheduler"):
        for evaluation, step in zip(
            evaluations_of(spec(name, {}), TABLE), run(start(spec(name, {})))[1], strict=True
        ):
            assert evaluation.sigma == pytest.approx(
                float(TABLE.sigma_at(step.timestep[:1].float())), rel=2e-2
            )


def test_windows_count_evaluations_as_diffusers_controlnet_pipelines_do() -> None:
    request = spec("EulerDiscreteScheduler", {})
    assert active_evaluations(request, TABLE, 0.0, 1.0) == (True,) * 8
    assert active_evaluations(request, TABLE, 0.25, 0.5) == (
        False,
        False,
        True,
        True,
        False,
        False,
        False,
        False,
    )
    assert active_evaluations(request, TABLE, 0.3, 0.7) == (
        False,
        False,
        False,
        True,
        True,
        False,
        False,
        False,
    )


def test_the_latent_has_the_models_dtype() -> None:
    step = start(spec("EulerDiscreteScheduler", {}), torch.float16).next_step()
    assert step is not None and step.x.dtype == step.model_input.dtype == torch.float16


def test_no_strength_leaves_the_latent_and_wrong_input_is_named() -> None:
    process = start(spec("EulerDiscreteScheduler", {}, strength=0.0))
    assert process.next_step() is None and torch.equal(process.result, ORIGINAL)
    with pytest.raises(InputError, match="NoSuchScheduler"):
        evaluations_of(spec("NoSuchScheduler", {}), TABLE)
    with pytest.raises(InputError, match="strength"):
        evaluations_of(spec("EulerDiscreteScheduler", {}, strength=1.5), TABLE)
