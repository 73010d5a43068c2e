"""Equal stages of several branches in one call give the picture of one call per branch, however the
branches differ.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hand_drawn import unet
from torch import Tensor

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.patches import OpaquePatch
from katz_graph.core.recipe import (
    Area,
    ClipRecipe,
    Concatenated,
    Conditioning,
    ConditioningEntry,
    ControlUse,
    Given,
    MaskUse,
    ModelRecipe,
    Picture,
    Prompt,
)
from katz_graph.executor.calls.batching import merge
from katz_graph.executor.engine import DeviceEngine
from katz_graph.ir.region import Region
from katz_graph.ir.values import Residuals, TextEncoding
from katz_graph.ir.values import Step as StepValue
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.node import Node
from katz_graph.node.types import NodeType
from katz_graph.node.wires import Step
from katz_graph.packs import load_registry
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.region import bind_region, region_nodes
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample

BOUND = 1e-5  # of the latent's range: products of other batch sizes round differently


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[DeviceEngine, DeviceEngine]]:
    """Yields (unbatched, batched)."""
    with local_engine(batching=False) as split, local_engine(batching=True) as batched:
        yield split, batched


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Makes pipelines whose UNet has added channels."""
    folder = tmp_path_factory.mktemp("seeing")
    for extra in (4, 5):
        make_pipeline(folder / str(extra), "sd1", seed=1, extra=extra)
    return lambda extra: folder / str(extra)


def region(model: ModelRecipe, positive: Conditioning, negative: Conditioning) -> Region:
    begin = {"model": model, "latent_image": {"samples": noise(1, 4, 16, 32, seed=1)}, "steps": 3}
    expansion = expand_sampling("StepBegin", begin, model, positive, negative, 5.0)
    return bind(expansion.graph, expansion.outputs[0].node)


def moved(
    engines: tuple[DeviceEngine, DeviceEngine], requested: Region, **types: NodeType
) -> float:
    """Returns how far batching moves the latent, as a share of its range."""
    split, batched = engines
    assert any(
        len(call.operations) > 1 for calls in batched.plan(requested).calls for call in calls
    )
    return difference(
        *(sample(one, requested, bare_context(one, **types)) for one in (batched, split))
    )


def halves() -> tuple[Area, Area]:
    return Area(0, 0, 16, 16), Area(0, 16, 16, 16)


def boxes() -> tuple[MaskUse, ...]:
    """Returns masks with boxes of one size."""
    masks = torch.zeros(2, 1, 16, 32)
    masks[0, :, 2:12, 1:13], masks[1, :, 4:14, 18:30] = 1, 1
    return tuple(MaskUse(Picture.of(mask), bounds=True) for mask in masks)


@pytest.mark.parametrize("extra", [5, 4], ids=["inpainting", "editing"])
@pytest.mark.parametrize("limit", ["area", "mask"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"])
def test_areas_of_one_size_see_their_own_part_of_the_picture(
    extra: int,
    limit: str,
    wrapped: bool,
    seeing: Callable[[int], Path],
    engines: tuple[DeviceEngine, DeviceEngine],
) -> None:
    model, clip, _ = pipeline_recipes(seeing(extra))
    if wrapped:
        model = model.with_patch(OpaquePatch("network_wrapper", "calls", calls))
    mask = torch.zeros(1, 128, 256)
    mask[:, 32:96, 20:200] = 1
    seen = Concatenated(Picture.of(noise(1, 4, 16, 32, seed=2)), Picture.of(mask))
    limits = halves() if limit == "area" else boxes()
    texts = ("a red star", "a blue moon")
    positive = tuple(
        ConditioningEntry(Prompt(clip, text), concatenated=seen, **{limit: one})
        for text, one in zip(texts, limits, strict=True)
    )
    assert (
        moved(
            engines,
            region(model, positive, (ConditioningEntry(Prompt(clip, "sand"), concatenated=seen),)),
        )
        <= BOUND
    )


def calls(apply_model: Any, args: Mapping[str, Any]) -> Tensor:
    assert len(args["input"]) == len(args["cond_or_uncond"])  # packs divide by this number
    result: Tensor = apply_model(args["input"], args["timestep"], **args["c"])
    return result


def test_a_part_of_a_part_sees_its_own_place(
    seeing: Callable[[int], Path], engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    """On a model that sees the picture, two nested StepCrops equal one StepCrop of the same place."""
    model, clip, _ = pipeline_recipes(seeing(5))
    seen = Concatenated(
        Picture.of(noise(1, 4, 16, 32, seed=2)), Picture.of(torch.ones(1, 128, 256))
    )

    def drawn(*crops: dict[str, int]) -> Tensor:
        text = (ConditioningEntry(Prompt(clip, "a"), concatenated=seen),)
        nodes = {
            "begin": NodeCall(
                "StepBegin",
                {"model": model, "latent_image": {"samples": noise(1, 4, 16, 32)}, "steps": 2},
            )
        }
        step = Link("begin", 0)
        for number, crop in enumerate(crops):
            nodes[f"crop{number}"] = NodeCall("StepCrop", {"step": step, **crop})
            step = Link(f"crop{number}", 0)
        prediction = unet(nodes, "unet", model, text, step)
        nodes["weight"] = NodeCall(
            "WeighPrediction",
            {"step": Link("begin", 0), "prediction": prediction, "top": 6, "left": 18},
        )
        nodes["blend"] = NodeCall(
            "BlendPredictions", {"step": Link("begin", 0), "weighted_1": Link("weight", 0)}
        )
        nodes["end"] = NodeCall(
            "StepEnd", {"step": Link("begin", 0), "prediction": Link("blend", 0)}
        )
        return sample(engines[0], bind(Graph(nodes), "end"))

    outer, inner = (
        {"top": 2, "left": 8, "height": 14, "width": 24},
        {"top": 4, "left": 10, "height": 8, "width": 8},
    )
    assert torch.equal(drawn(outer, inner), drawn(inner | {"top": 6, "left": 18}))


class Earlier(Node, category="test"):
    """Lowers the noise level of a step, as packs may."""

    def run(self, step: Step) -> Step:
        return replace(step, timestep=step.timestep * 0.5, sigma=step.sigma * 0.5)


def test_branches_of_unequal_noise_level_do_not_share_a_call(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    texts = [(ConditioningEntry(Prompt(clip, text)),) for text in ("a", "b", "c")]
    nodes = {
        "begin": NodeCall(
            "StepBegin",
            {"model": model, "latent_image": {"samples": noise(1, 4, 8, 8)}, "steps": 2},
        ),
        "earlier": NodeCall("Earlier", {"step": Link("begin", 0)}),
    }
    steps = (Link("begin", 0), Link("earlier", 0), Link("begin", 0))
    cond, uncond, base = (
        unet(nodes, name, model, text, step)
        for name, text, step in zip(("x", "y", "z"), texts, steps, strict=True)
    )
    nodes["guidance"] = NodeCall("CFGCombine", {"cond": cond, "uncond": uncond, "base": base})
    nodes["end"] = NodeCall(
        "StepEnd", {"step": Link("begin", 0), "prediction": Link("guidance", 0)}
    )
    registry, _ = load_registry()
    graph = Graph(nodes)
    types = {"Earlier": Earlier.describe()}
    drawn = bind_region(graph, {**registry, **types}, region_nodes(graph, "end"), {})
    assert moved(engines, drawn, **types) <= BOUND


def test_a_controlnet_that_averages_and_one_that_does_not(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine], tmp_path: Path
) -> None:
    """Their residuals differ in shape, so only the decoders that read them run separately."""
    shutil.copytree(sd1.controls[0], tmp_path / "shuffle")
    path = tmp_path / "shuffle" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"global_pool_conditions": True}))
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    image = Picture.of(noise(1, 128, 256, 3).sigmoid())
    positive, negative = (
        (ConditioningEntry(Prompt(clip, text), (ControlUse(controlnet_recipe(folder), image),)),)
        for text, folder in (("a", tmp_path / "shuffle"), ("b", sd1.controls[1]))
    )
    assert moved(engines, region(model, positive, negative)) <= BOUND


def given(clip: ClipRecipe, engine: DeviceEngine, pooled: Tensor | None) -> ConditioningEntry:
    with torch.no_grad():
        return ConditioningEntry(
            Given.of(engine.models.encode_text(Prompt(clip, "b")).hidden, pooled)
        )


def test_a_text_that_a_pack_made_shares_calls_with_a_prompt(
    sd1: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    """Pooled text, which only other models use, changes nothing."""
    model, clip, _ = pipeline_recipes(sd1.pipeline)
    prompt, plain, pooled = (
        ConditioningEntry(Prompt(clip, "a")),
        *(given(clip, engines[0], one) for one in (None, torch.ones(1, 40))),
    )
    assert moved(engines, region(model, (prompt,), (pooled,))) <= BOUND
    assert moved(engines, region(model, (pooled,), (prompt,))) <= BOUND
    assert torch.equal(
        sample(engines[1], region(model, (prompt,), (pooled,))),
        sample(engines[1], region(model, (prompt,), (plain,))),
    )


def test_a_text_without_sdxl_inputs_is_named(
    sdxl: Models, engines: tuple[DeviceEngine, DeviceEngine]
) -> None:
    model, clip, _ = pipeline_recipes(sdxl.pipeline)
    for engine in engines:
        with pytest.raises(InputError, match="the model needs pooled text"):
            sample(
                engine,
                region(
                    model, (ConditioningEntry(Prompt(clip, "a")),), (given(clip, engines[0], None),)
                ),
            )


@dataclass(frozen=True)
class Plain:
    rows: Tensor
    level: float


def test_a_call_never_takes_the_plain_values_of_the_first_for_those_of_all() -> None:
    rows = torch.zeros(1, 8)
    with pytest.raises(
        RunError, match=r"Plain\.level of operations that share a call: got 1\.0 and 7\.0, expected"
    ):
        merge([(Plain(rows, 1.0),), (Plain(rows, 7.0),)])
    assert merge([Plain(rows, 1.0), Plain(rows, 1.0)]).rows.shape == (2, 8)


def test_rows_of_one_call_keep_their_own_noise_levels() -> None:
    x = torch.zeros(1, 4, 2, 2)
    merged = merge([StepValue.of(x, x, 1.0, 500.0), StepValue.of(x, x, 7.0, 20.0)])
    assert (merged.x.shape, merged.sigma.tolist(), merged.timestep.tolist()) == (
        (2, 4, 2, 2),
        [1.0, 7.0],
        [500.0, 20.0],
    )


def test_a_call_takes_no_tensors_that_do_not_fit() -> None:
    one = torch.zeros(1, 4, 2, 2)
    for other in (torch.zeros(1, 4, 1, 1), one.half()):
        with pytest.raises(
            RunError,
            match=r"Residuals\.mid of operations that share a call: got \[1, 4, 2, 2\] torch\.float32",
        ):
            merge([Residuals((), one), Residuals((), other)])
    with pytest.raises(RunError, match=r"Residuals\.down of operations"):
        merge([Residuals((one,), one), Residuals((), one)])
    with pytest.raises(
        RunError,
        match=r"TextEncoding\.pooled of operations that share a call: got NoneType and Tensor",
    ):
        merge([TextEncoding(one), TextEncoding(one, one)])
