"""`katz bench parity`: compares our step regions with plain loops over diffusers' modules, and
DiffusersSampler and transformers with the stock pipelines.

float32, one thread. Largest absolute difference of the final latent (of transformers: of the
picture) over its range: at most 1e-5
everywhere, and exactly 0 where order and batching of the operations are the same and both run on
the very modules (one call per branch, the reference on the engine's weights in memory: equal
weights elsewhere in memory already move small matrix products by a rounding).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import diffusers
import torch
from torch import Tensor

from katz_graph.bench import parity_reference as reference
from katz_graph.bench.conditions import library_products, quiet
from katz_graph.bench.parity_reference import Case, ControlCase
from katz_graph.bench.random_models import (
    Kind,
    kinds,
    make_controlnet,
    make_lora,
    make_pipeline,
    playing,
)
from katz_graph.bench.requests import (
    bare_context,
    local_engine,
    region_of,
    sample,
    sampler_region,
)
from katz_graph.bench.result import BenchResult
from katz_graph.bench.stock_pipelines import Asked, Shown, stock
from katz_graph.bench.stock_pipelines import region as transformer_region
from katz_graph.errors import InputError
from katz_graph.executor.engine import DeviceEngine
from katz_graph.files.folders import MINI
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.planner.sampling import sampling_of
from katz_graph.sampling.spec import SamplingSpec

BOUND = 1e-5  # of the latent's range: batching and threads alone move it by about 1e-6
# strength and window of each ControlNet
CONTROLS = ((0.8, 0.0, 1.0), (1.0, 0.0, 0.55), (0.5, 0.25, 1.0))
STRENGTHS = (0.4, 0.25)  # of each LoRA
PIPELINE_CASES = (
    "0 ControlNets, 0 LoRAs, text",
    "1 ControlNets, 0 LoRAs, text",
    "3 ControlNets, 0 LoRAs, text",
    "1 ControlNets, 2 LoRAs, text",
    "0 ControlNets, 0 LoRAs, batch of 2",
)
# at 5, DPM++ 2M lets the rounding of batched products grow to 1.1e-5, at 8 to 2.4e-6, at 12 to
# 0.9e-6
EXTRAPOLATING_STEPS = 12
# as people use; at 8, DPM++ 2M extrapolates so far that rounding alone grows to 1.4e-5
PIPELINE_STEPS = 20
# at other numbers timesteps of a transformer that was trained on a table of noise levels are no
# integers, between which Euler's scheduler mixes levels and KSamplers their logarithms
TRANSFORMER_STEPS = 10
TRANSFORMER_SEED = 7
SPLIT, BATCHED, SAME = "one call per branch", "batched", "same modules"
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Euler": ("EulerDiscreteScheduler", {}),
    "Euler ancestral": ("EulerAncestralDiscreteScheduler", {}),
    # as the published pipelines are configured
    "DDIM": ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False}),
    "DPM++ 2M Karras": ("DPMSolverMultistepScheduler", {"use_karras_sigmas": True}),
    "UniPC": ("UniPCMultistepScheduler", {}),
}


@dataclass(frozen=True, slots=True)
class Models:
    """The files of one family."""

    name: str
    pipeline: Path
    controls: tuple[Path, ...]
    loras: tuple[Path, ...]


def random_models(folder: Path, family: Kind, layers: int = 2) -> Models:
    """Makes a pipeline, three ControlNets, and two LoRAs of different rank and alpha that share
    layers, the second with a text-encoder part. `layers`: of each of a network's blocks.

    A folder in which they have been made already is taken as it is.
    """
    controls = tuple(folder / f"{family}-control{number}" for number in range(3))
    loras = (folder / f"{family}-first.safetensors", folder / f"{family}-second.safetensors")
    if not loras[1].exists():
        make_pipeline(folder / family, family, seed=1, layers=layers)
        for number, control in enumerate(controls):
            make_controlnet(control, family, seed=10 + number, layers=layers)
        first = {"rank": 4, "alpha": 2.0, "naming": "kohya", "seed": 20, "text_encoder": False}
        second = {"rank": 8, "alpha": 8.0, "naming": "peft", "seed": 21, "text_encoder": True}
        for path, made in zip(loras, (first, second), strict=True):
            make_lora(path, family, **made, layers=layers)
    return Models(family, folder / family, controls, loras)


def mini_models() -> Models:
    """Returns the miniature that predicts noise, with what was trained for it."""
    controls = tuple(MINI / "controlnet" / name for name in ("edges", "silhouette"))
    return Models(
        "mini",
        MINI / "pipeline",
        (*controls, *controls)[:3],
        tuple(MINI / "loras" / f"{name}.safetensors" for name in ("dusk", "sticker")),
    )


def cases(models: Models) -> Iterator[Case]:
    """Yields 0, 1, 3 ControlNets with 0, 1, 2 LoRAs, from noise, from a picture, under a mask, in a
    batch; the samplers take turns.
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


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Computes the largest absolute difference over the range of `theirs`."""
    return float((ours - theirs).abs().max() / (theirs.max() - theirs.min()))


def against_plain_loop(case: Case, engine: DeviceEngine) -> tuple[float, float]:
    """Compares final latents with the plain loop with the same batching: on the engine's modules,
    and on others.

    The engine's batching must be decided.
    """
    region = sampler_region(case)
    spec, _ = sampling_of(region.begin)
    batched = engine.choices.batching
    assert isinstance(spec, SamplingSpec) and batched is not None
    ours = sample(engine, region)
    pipeline, controls = engines_modules(case, engine, region)
    shared = reference.sample(case, spec.sigmas, batched, pipeline, controls)
    return difference(ours, shared), difference(ours, reference.sample(case, spec.sigmas, batched))


def engines_modules(case: Case, engine: DeviceEngine, region: Region) -> tuple[Any, list[Any]]:
    """Makes a stock pipeline around the modules that the engine has just run, LoRAs in place;
    returns it with the engine's ControlNets.
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


def against_pipeline(case: Case, scheduler: str, engine: DeviceEngine) -> float:
    """Compares DiffusersSampler's latent with the stock pipeline's: same scheduler, seed and
    ControlNets.
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


def unchanged_weights(case: Case) -> bool:
    """Tells whether a run with LoRAs and one without leave every weight bit-equal."""
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


def run() -> BenchResult:
    """Runs all families, all cases, both ways of batching."""
    if find_spec("peft") is None:
        raise InputError(
            "bench parity lets diffusers load LoRAs for comparison, which needs peft: pip install "
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
    """Yields the comparisons of transformers' pictures with the stock pipelines', without and with
    a ControlNet, one call per branch and batched.
    """
    for kind, batching in product(compared, (False, True)):
        place = folder / kind
        if not place.exists():
            make_pipeline(place, kind, seed=5, with_t5=True)
            make_controlnet(place / "controlnet", kind, seed=2)
        with local_engine(batching=batching) as engine:
            for controls in (0, 1):
                yield [
                    f"{kind}, {controls} ControlNets, text, euler",
                    f"{BATCHED if batching else SPLIT}, stock pipeline",
                    against_stock_picture(place, kind, controls, engine),
                ]


def editing_rows(folder: Path, compared: Sequence[Kind]) -> Iterator[list[Any]]:
    """Yields the same comparisons of models that are shown a picture, which have one branch."""
    for kind in compared:
        for shown, (_, changed) in kinds()[kind].stock.editing.items():
            place = folder / f"{kind}-{shown}"
            make_pipeline(place, kind, seed=5, **changed)
            with local_engine(batching=False) as engine:
                yield [
                    f"{kind}, {shown}, text, euler",
                    f"{SPLIT}, stock pipeline",
                    against_stock_picture(place, kind, 1, engine, shown),
                ]


def against_stock_picture(
    folder: Path, kind: Kind, pictures: int, engine: DeviceEngine, shown: Shown = "controlnet"
) -> float:
    """Compares a transformer's picture with the stock pipeline's, with up to one that is shown to a
    ControlNet or to the model.
    """
    draw = torch.Generator().manual_seed(TRANSFORMER_SEED)
    shape = 1, kinds()[kind].latent.channels, 8, 12
    noise, image = torch.randn(shape, generator=draw), torch.rand(1, 64, 96, 3, generator=draw)
    given = image if pictures else None
    asked = Asked(folder, kind, noise, TRANSFORMER_STEPS, image=given, shown=shown)
    latent = sample(engine, transformer_region(asked, TRANSFORMER_SEED, engine))
    vae = pipeline_recipes(folder)[2]
    return difference(engine.decode_latent(vae, latent, bare_context(engine)), stock(asked)())
