"""`katz bench parity`: compares our step regions with plain loops over diffusers' modules, and
DiffusersSampler and transformers with the stock pipelines.

float32, one thread. The figure is the largest absolute difference of the final latent (for
transformers: of the picture), divided by its range. It must be at most 1e-5 in all cases. It must
be exactly 0 if both run the same module objects with the same order and batching of operations, one
call per branch. Equal weights at another memory address are not enough: they already change the
rounding of small matrix products.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import diffusers
import torch

from katz_graph.bench.conditions import library_products, quiet
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError
from katz_graph.executor.engine import DeviceEngine
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.testing import plain_loop as reference
from katz_graph.testing.model_files import Models, difference, mini_models, random_models
from katz_graph.testing.parity import (
    against_plain_loop,
    cases,
    unchanged_weights,
)
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.random_models import (
    Kind,
    kinds,
    make_controlnet,
    make_pipeline,
    playing,
)
from katz_graph.testing.requests import (
    bare_context,
    local_engine,
    region_of,
    sample,
)
from katz_graph.testing.stock_pipelines import Asked, Shown, stock
from katz_graph.testing.stock_pipelines import compared as further
from katz_graph.testing.stock_pipelines import region as transformer_region

BOUND = 1e-5  # of the latent's range; batching and threads alone change it by about 1e-6
PIPELINE_CASES = (
    "0 ControlNets, 0 LoRAs, text",
    "1 ControlNets, 0 LoRAs, text",
    "3 ControlNets, 0 LoRAs, text",
    "1 ControlNets, 2 LoRAs, text",
    "0 ControlNets, 0 LoRAs, batch of 2",
)
# a usual number; with 8 steps, DPM++ 2M extrapolates so far that rounding alone grows to 1.4e-5
PIPELINE_STEPS = 20
# other numbers give fractional timesteps for a transformer trained on a table of noise levels;
# there Euler's scheduler interpolates the levels, but KSamplers interpolate their logarithms
TRANSFORMER_STEPS = 10
TRANSFORMER_SEED = 7
FURTHER_STEPS = 4  # of pipelines that take large pictures only
SPLIT, BATCHED, SAME = "one call per branch", "batched", "same modules"
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Euler": ("EulerDiscreteScheduler", {}),
    "Euler ancestral": ("EulerAncestralDiscreteScheduler", {}),
    # configured as in the published pipelines
    "DDIM": ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False}),
    "DPM++ 2M Karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "UniPC": ("UniPCMultistepScheduler", {}),
}


def against_pipeline(case: Case, scheduler: str, engine: DeviceEngine) -> float:
    """Returns the difference of DiffusersSampler's latent from the stock pipeline's, with the same
    scheduler, seed and ControlNets.
    """
    name, config = SCHEDULERS[scheduler]
    inputs = {
        "scheduler_class": name,
        "scheduler_config": json.dumps(config),
        "steps": case.steps,
        "seed": case.seed,
    }
    ours = sample(engine, region_of("DiffusersStepBegin", inputs | {"strength": 1.0}, case))
    pipeline = reference.load_with_controls(case)
    pipeline.scheduler = getattr(diffusers, name).from_config(pipeline.scheduler.config, **config)
    height, width = (side * 8 for side in case.latent.shape[-2:])
    controls: dict[str, Any] = {}
    if case.controls:
        image = case.image.movedim(-1, 1)
        controls = {
            "image": [image] * len(case.controls),
            "controlnet_conditioning_scale": [control.strength for control in case.controls],
            "control_guidance_start": [control.start for control in case.controls],
            "control_guidance_end": [control.end for control in case.controls],
        }
    result = pipeline(
        prompt=case.prompt,
        negative_prompt=case.negative,
        height=height,
        width=width,
        num_inference_steps=case.steps,
        guidance_scale=case.guidance,
        num_images_per_prompt=len(case.latent),
        generator=torch.Generator().manual_seed(case.seed),
        output_type="latent",
        **controls,
    ).images
    return difference(ours, result / pipeline.vae.config.scaling_factor)


def run() -> BenchResult:
    """Runs all families and cases, with and without batching. Raises InputError without peft."""
    if find_spec("peft") is None:
        raise InputError(
            "bench parity loads LoRAs with diffusers, which needs peft: pip install "
            "'katz-graph[train]'"
        )
    torch.set_num_threads(1)
    rows: list[list[Any]] = []
    with quiet(), library_products(), tempfile.TemporaryDirectory() as folder:
        drawn = [random_models(Path(folder), kind) for kind in playing("drawn")]
        families = [*drawn, mini_models()]
        for models in families:
            rows += _plain_rows(models)
            rows += _pipeline_rows(models)
        compared = [kind for kind, made in kinds().items() if made.stock is not None]
        rows += transformer_rows(Path(folder), compared)
        rows += editing_rows(Path(folder), compared)
        rows += further_rows(Path(folder), compared)
        restored = all(unchanged_weights(list(cases(models))[-1]) for models in families)
    exact = [row for row in rows if row[1] == f"{SPLIT}, {SAME}"]
    metrics = {
        "largest_difference": max(row[2] for row in rows),
        "largest_difference_same_order": max(row[2] for row in exact),
        "cases": len(rows),
        "weights_restored": restored,
    }
    ok = (
        metrics["largest_difference"] <= BOUND
        and metrics["largest_difference_same_order"] == 0.0
        and restored
    )
    bounds = {
        "largest_difference": f"<= {BOUND}",
        "largest_difference_same_order": "== 0",
        "weights_restored": "== True",
    }
    return BenchResult("parity", ok, metrics, bounds, ("case", "how", "difference / range"), rows)


def _plain_rows(models: Models) -> Iterator[list[Any]]:
    for batching, how in ((False, SPLIT), (True, BATCHED)):
        with local_engine(batching=batching) as engine:
            for case in cases(models):
                shared, loaded = against_plain_loop(case, engine)
                yield [f"{case.name}, {case.sampler}", f"{how}, {SAME}", shared]
                yield [f"{case.name}, {case.sampler}", f"{how}, loaded apart", loaded]


def _pipeline_rows(models: Models) -> Iterator[list[Any]]:
    some = {case.name: case for case in cases(models)}
    with local_engine(batching=True) as engine:
        for name in PIPELINE_CASES:
            case = replace(some[f"{models.name}, {name}"], steps=PIPELINE_STEPS)
            for scheduler in SCHEDULERS:
                yield [
                    f"{case.name}, {scheduler}",
                    "stock pipeline",
                    against_pipeline(case, scheduler, engine),
                ]


def transformer_rows(folder: Path, compared: Sequence[Kind]) -> Iterator[list[Any]]:
    """Yields a row per comparison of a transformer's picture with the stock pipeline's: without and
    with a ControlNet, one call per branch and batched.
    """
    for kind, batching in product(compared, (False, True)):
        place = folder / kind
        if not place.exists():
            make_pipeline(place, kind, seed=5, with_t5=True)
            if kinds()[kind].control:
                make_controlnet(place / "controlnet", kind, seed=2)
        with local_engine(batching=batching) as engine:
            for controls in (0, 1) if kinds()[kind].control else (0,):
                yield [
                    f"{kind}, {controls} ControlNets, text, euler",
                    f"{BATCHED if batching else SPLIT}, stock pipeline",
                    against_stock_picture(place, kind, controls, engine),
                ]


def editing_rows(folder: Path, compared: Sequence[Kind]) -> Iterator[list[Any]]:
    """Yields the same comparisons for models with a picture input, and for inpainting ControlNets;
    these have one branch.
    """
    for kind in compared:
        if (inpainting := kinds()[kind].stock.inpainting) is not None:
            place = folder / f"{kind}-inpaint"
            make_pipeline(place, kind, seed=5)
            make_controlnet(place / "controlnet", kind, seed=2, **inpainting[1])
            with local_engine(batching=False) as engine:
                yield [
                    f"{kind}, inpainting ControlNet, text, euler",
                    f"{SPLIT}, stock pipeline",
                    against_stock_picture(place, kind, 1, engine, "inpaint"),
                ]
        for shown, (_, changed) in kinds()[kind].stock.editing.items():
            place = folder / f"{kind}-{shown}"
            make_pipeline(place, kind, seed=5, **changed)
            with local_engine(batching=False) as engine:
                yield [
                    f"{kind}, {shown}, text, euler",
                    f"{SPLIT}, stock pipeline",
                    against_stock_picture(place, kind, 1, engine, shown),
                ]


def further_rows(folder: Path, compared: Sequence[Kind]) -> Iterator[list[Any]]:
    """Yields the same comparisons with further pipelines of models that are shown a picture."""
    for kind in compared:
        for name, one in kinds()[kind].stock.comparisons.items():
            place = folder / f"{kind}-{name}"
            make_pipeline(place, kind, seed=5, **one.changed)
            draw = torch.Generator().manual_seed(TRANSFORMER_SEED)
            noise = torch.randn(one.shape, generator=draw)
            sides = map(kinds()[kind].latent.pixels, one.shape[-2:])
            image = torch.randint(0, 256, (1, *sides, 3), generator=draw) / 255
            with local_engine(batching=False) as engine:
                ours, theirs = further(
                    one, place, noise, image, FURTHER_STEPS, TRANSFORMER_SEED, engine
                )
            yield [
                f"{kind}, {name}, text, euler",
                f"{SPLIT}, stock pipeline",
                difference(ours, theirs),
            ]


def against_stock_picture(
    folder: Path, kind: Kind, pictures: int, engine: DeviceEngine, shown: Shown = "controlnet"
) -> float:
    """Returns the difference of a transformer's picture from the stock pipeline's. `pictures`: 0,
    or 1 for an input picture of the ControlNet or the model.
    """
    draw = torch.Generator().manual_seed(TRANSFORMER_SEED)
    shape = 1, kinds()[kind].latent.channels, 8, 12
    noise, image = torch.randn(shape, generator=draw), torch.rand(1, 64, 96, 3, generator=draw)
    given = image if pictures else None
    asked = Asked(folder, kind, noise, TRANSFORMER_STEPS, image=given, shown=shown)
    latent = sample(engine, transformer_region(asked, TRANSFORMER_SEED, engine))
    vae = pipeline_recipes(folder)[2]
    return difference(engine.decode_latent(vae, latent, bare_context(engine)), stock(asked)())
