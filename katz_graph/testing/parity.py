"""Compares the engine with plain loops over diffusers' modules, and weights before and after a
run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from katz_graph.executor.engine import DeviceEngine
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.planner.sampling import sampling_of
from katz_graph.testing import plain_loop as reference
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import (
    local_engine,
    sample,
    sampler_region,
)

# strength, start and end of each ControlNet
CONTROLS = ((0.8, 0.0, 1.0), (1.0, 0.0, 0.55), (0.5, 0.25, 1.0))
STRENGTHS = (0.4, 0.25)  # of each LoRA
# DPM++ 2M amplifies the rounding differences of batched products: to 1.1e-5 with 5 steps, 2.4e-6
# with 8, 0.9e-6 with 12
EXTRAPOLATING_STEPS = 12


def cases(models: Models) -> Iterator[Case]:
    """Yields combinations of 0, 1, 3 ControlNets and 0, 1, 2 LoRAs: each from noise, from a
    picture, with a mask, and as a batch. Alternates the samplers.
    """
    size = 16 if models.name == "mini" else 8
    generator = torch.Generator().manual_seed(3)
    image = torch.rand(1, size * 8, size * 8, 3, generator=generator)
    latent = torch.randn(1, 4, size, size, generator=generator)
    mask = torch.zeros(size, size)
    mask[size // 4 : size // 2, 2 : size // 2] = 1.0
    empty = torch.zeros(1, 4, size, size)
    latents: dict[str, dict[str, Any]] = {
        "text": {"latent": empty},
        "picture": {"latent": latent, "denoise": 0.6},
        "mask": {"latent": latent, "mask": mask},
        "batch of 2": {"latent": empty.repeat(2, 1, 1, 1)},
    }
    samplers = tuple(reference.LOOPS)
    for number, (controls, loras, kind) in enumerate(
        (c, r, k) for c in (0, 1, 3) for r in (0, 1, 2) for k in latents
    ):
        sampler = samplers[number % len(samplers)]
        yield Case(
            name=f"{models.name}, {controls} ControlNets, {loras} LoRAs, {kind}",
            pipeline=models.pipeline,
            sampler=sampler,
            steps=EXTRAPOLATING_STEPS if sampler == "dpmpp_2m" else 5,
            image=image,
            controls=tuple(ControlCase(models.controls[i], *CONTROLS[i]) for i in range(controls)),
            loras=tuple(zip(models.loras[:loras], STRENGTHS, strict=False)),
            **latents[kind],
        )


def against_plain_loop(case: Case, engine: DeviceEngine) -> tuple[float, float]:
    """Returns the difference of the engine's final latent from a plain loop with the same batching:
    first on the engine's modules, then on separately loaded ones. The engine's batching must be
    set.
    """
    region = sampler_region(case)
    spec, _ = sampling_of(region.begin)
    batched = engine.choices.batching
    assert hasattr(spec, "sigmas") and batched is not None
    ours = sample(engine, region)
    pipeline, controls = engines_modules(case, engine, region)
    shared = reference.sample(case, spec.sigmas, batched, pipeline, controls)
    return difference(ours, shared), difference(ours, reference.sample(case, spec.sigmas, batched))


def engines_modules(case: Case, engine: DeviceEngine, region: Region) -> tuple[Any, list[Any]]:
    """Builds a stock pipeline around the engine's modules, with LoRAs applied; returns it with the
    engine's ControlNets. The engine must have just run the region.
    """
    models = engine.models
    _, clip, _ = pipeline_recipes(case.pipeline)
    pipeline = reference.load(replace(case, loras=()))
    setattr(pipeline, reference.part(pipeline), models.patch(region.begin.inputs["model"]))
    for encoder, name in zip(clip.encoders, ("text_encoder", "text_encoder_2"), strict=False):
        setattr(
            pipeline, name, models.store.text_encoder(encoder.encoder, models.device, models.dtype)
        )
    return pipeline, [models.module(controlnet_recipe(control.folder)) for control in case.controls]


def unchanged_weights(case: Case) -> bool:
    """Returns whether every weight is bit-equal after a run with LoRAs and a run without."""
    with local_engine() as engine:
        model, clip, _ = pipeline_recipes(case.pipeline)
        modules = [engine.models.patch(model)] + [
            engine.models.store.text_encoder(
                encoder.encoder, engine.models.device, engine.models.dtype
            )
            for encoder in clip.encoders
        ]
        before = [parameter.clone() for module in modules for parameter in module.parameters()]
        sample(engine, sampler_region(case))
        sample(engine, sampler_region(replace(case, loras=())))
        after = [parameter for module in modules for parameter in module.parameters()]
    return all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
