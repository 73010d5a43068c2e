"""Runs diffusers' stock pipelines over transformers, asked as a KSampler is: from the same noise,
with the same texts and levels. Tests and `katz bench parity` compare pictures with theirs,
`katz bench overhead` seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import diffusers
import torch
from diffusers import FluxPipeline
from torch import Tensor

from katz_graph.bench.random_transformers import PIPELINES, Kind
from katz_graph.bench.requests import bind
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.recipe import ConditioningEntry, ControlUse, Picture, Prompt

TEXTS = "a red circle above sand", "grey, blurred"
TOLD = 3.5  # guidance that a model of FLUX.1 is told
SCHEDULES = {
    "StableDiffusion3Pipeline": "normal",
    "HunyuanDiTPipeline": "normal",
}  # of others: simple


@dataclass(frozen=True, slots=True)
class Asked:
    """Holds what is asked of the pipeline in a folder: `texts`, the positive and the negative;
    `noise` [B, C, h, w]; `image` [1, H, W, 3] in 0..1 for the ControlNet in the folder's
    `controlnet`, None without one; `told`: further arguments of the pipeline.
    """

    folder: Path
    kind: Kind
    noise: Tensor
    steps: int
    texts: tuple[str, str] = TEXTS
    guidance: float = 4.0  # between both sides, of models that are not told it
    image: Tensor | None = None
    strength: float = 1.0
    told: dict[str, Any] = field(default_factory=dict)


def schedule(kind: Kind) -> str:
    """Names the schedule whose levels are the pipeline's."""
    return SCHEDULES.get(PIPELINES[kind][0], "simple")


def cfg(kind: Kind, guidance: float) -> float:
    """Returns a sampler's guidance: 1 where the model is told it or has none."""
    return 1.0 if PIPELINES[kind][0] == "FluxPipeline" else guidance


def region(asked: Asked, seed: int) -> Region:
    """Makes the region of a KSampler that begins with the noise of the seed."""
    model, clip, vae = pipeline_recipes(asked.folder)
    used: tuple[ControlUse, ...] = ()
    if asked.image is not None:
        control = controlnet_recipe(asked.folder / "controlnet")
        used = (ControlUse(control, Picture.of(asked.image), asked.strength, vae=vae),)
    begin = {
        "model": model,
        "latent_image": {"samples": torch.zeros_like(asked.noise)},
        "sampler_name": "euler",
        "scheduler": schedule(asked.kind),
        "steps": asked.steps,
        "seed": seed,
    }
    positive, negative = (
        (ConditioningEntry(Prompt(clip, text), control=used),) for text in asked.texts
    )
    guidance = cfg(asked.kind, asked.guidance)
    expansion = expand_sampling("StepBegin", begin, model, positive, negative, guidance)
    return bind(expansion.graph, expansion.outputs[0].node)


def stock(asked: Asked, output: Literal["pt", "latent"] = "pt") -> Callable[[], Tensor]:
    """Loads a pipeline with all its text encoders. Returns a call of it that gives pictures
    [B, H, W, 3] in 0..1, or the latent [B, C, h, w] as its VAE takes it. A pipeline whose scheduler
    draws noise gets Euler's, unless the call is told anything of its own.
    """
    name, noise = PIPELINES[asked.kind][0], asked.noise
    batch, channels, high, wide = noise.shape
    height, width = 8 * high, 8 * wide
    pipeline = _loaded(asked, name)
    given = asked.told | {
        "height": height,
        "width": width,
        "num_inference_steps": asked.steps,
        "output_type": output,
    }
    if asked.image is not None:
        given["control_image"] = 2 * asked.image.movedim(-1, 1) - 1  # tensors are taken as they are
        given["controlnet_conditioning_scale"] = asked.strength
    if name == "HunyuanDiTPipeline" and not asked.told:
        euler = diffusers.EulerDiscreteScheduler.from_config(
            pipeline.scheduler.config, timestep_spacing="linspace"
        )
        pipeline.scheduler = euler
        # it begins with noise of the highest level, a KSampler with that and a picture of size one
        noise = noise * (1 + euler.init_noise_sigma**-2) ** 0.5
    given |= {"latents": noise, "guidance_scale": asked.guidance}
    match name:
        case "FluxPipeline":
            given["latents"] = FluxPipeline._pack_latents(noise, batch, channels, high, wide)
            given |= {"guidance_scale": TOLD, "max_sequence_length": 256}
        case "ZImagePipeline":  # it adds the difference to the positive side
            given["guidance_scale"] = asked.guidance - 1
        case "HunyuanDiTPipeline":
            given["use_resolution_binning"] = False
        case _:
            given["max_sequence_length"] = 77
    if name != "FluxPipeline":
        given["negative_prompt"] = asked.texts[1]

    def once() -> Tensor:
        made: Tensor = pipeline(asked.texts[0], **given).images
        if output == "pt":
            return made.movedim(1, -1)
        if name == "FluxPipeline":
            made = FluxPipeline._unpack_latents(made, height, width, 8)
        config = pipeline.vae.config
        latent: Tensor = made / config.scaling_factor + (config.shift_factor or 0.0)
        return latent

    return once


def _loaded(asked: Asked, name: str) -> Any:
    """Loads the pipeline, of the class that takes a ControlNet where it has one."""
    parts: dict[str, Any] = {}
    kind = getattr(diffusers, name)
    if asked.image is not None:
        kind = getattr(diffusers, f"{name.removesuffix('Pipeline')}ControlNetPipeline")
        network = PIPELINES[asked.kind][1].removesuffix("Transformer2DModel").removesuffix("Model")
        model = getattr(diffusers, f"{network}ControlNetModel")
        parts["controlnet"] = model.from_pretrained(asked.folder / "controlnet")
    pipeline = kind.from_pretrained(asked.folder, **parts)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
