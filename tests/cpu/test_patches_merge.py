"""Merged models combine weights of two models, with LoRAs before and after merging."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from katz_graph.core.errors import InputError, KatzError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import ClipRecipe, Lora, ModelRecipe, Prompt, digest
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.executor.worker import models as live
from katz_graph.models.loading.identity import count_values, file_identity
from katz_graph.models.loading.merge import merged_clip, merged_model
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.packs import Registry, load_registry
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.random_models import make_pipeline
from katz_graph.testing.requests import bare_context, local_engine

HALF = (("", 0.5, 0.5),)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelRecipe, ClipRecipe]:
    """Returns an SD1 of other weights."""
    folder = tmp_path_factory.mktemp("other")
    make_pipeline(folder, "sd1", seed=99, layers=1)
    model, clip, _ = pipeline_recipes(folder)
    return model, clip


@pytest.fixture(scope="module")
def engine(costs: Path) -> DeviceEngine:
    with local_engine(batching=False, cache=costs) as engine:
        yield engine


def recipes(models: Models) -> tuple[ModelRecipe, ClipRecipe]:
    model, clip, _ = pipeline_recipes(models.pipeline)
    return model, clip


def lora(models: Models, number: int, strength: float) -> Lora:
    return Lora(file_identity(models.loras[number]), strength)


def weights(recipe: ModelRecipe) -> dict[str, Tensor]:
    return {
        name: weight.clone()
        for name, weight in live.DeviceModels().patch(recipe).named_parameters()
    }


@cache
def registry() -> Registry:
    return load_registry()[0]


def run(engine: DeviceEngine, nodes: Mapping[str, NodeCall]) -> Tensor:
    result = run_graph(
        Graph(dict(nodes)), bare_context(engine), ResultCache("none"), targets=["out"]
    )
    result.raise_failures()
    return result.outputs["out"][0]["samples"]


def painted(engine: DeviceEngine, model: Any, clip: Any, **merge: NodeCall) -> Tensor:
    encode = {"clip": clip, "text": "a red circle above sand"}
    inputs = {
        "model": model,
        "positive": Link("text", 0),
        "negative": Link("text", 0),
        "cfg": 1.0,
        "steps": 3,
    }
    latent = {"latent_image": {"samples": torch.zeros(1, 4, 8, 8)}}
    return run(
        engine,
        {
            **merge,
            "text": NodeCall("CLIPTextEncode", encode),
            "out": NodeCall("KSampler", {**inputs, **latent}),
        },
    )


def test_a_share_of_1_or_0_is_one_of_the_models(
    sd1: Models, other: tuple[ModelRecipe, ClipRecipe], engine: DeviceEngine
) -> None:
    (model, clip), (model2, clip2) = recipes(sd1), other
    for ratio, expected in ((1.0, (model, clip)), (0.0, (model2, clip2))):
        nodes = {
            "models": NodeCall(
                "ModelMergeSimple", {"model1": model, "model2": model2, "ratio": ratio}
            ),
            "clips": NodeCall("CLIPMergeSimple", {"clip1": clip, "clip2": clip2, "ratio": ratio}),
        }
        assert (
            difference(
                painted(engine, Link("models", 0), Link("clips", 0), **nodes),
                painted(engine, *expected),
            )
            < 1e-6
        )
    found = difference(painted(engine, model, clip), painted(engine, model2, clip2))
    assert 1e-2 < found < torch.inf


def test_half_is_the_mean(sd1: Models, other: tuple[ModelRecipe, ClipRecipe]) -> None:
    (model, clip), (model2, clip2) = recipes(sd1), other
    first, second, merged = (
        weights(model),
        weights(model2),
        weights(merged_model(model, model2, HALF)),
    )
    assert all(
        torch.allclose(merged[name], (first[name] + second[name]) / 2, atol=1e-7) for name in first
    )
    store = live.DeviceModels()
    words = [
        store.encode_text(Prompt(one, "a star")).hidden
        for one in (clip, clip2, merged_clip(clip, clip2, HALF))
    ]
    assert not torch.allclose(words[2], words[0]) and not torch.allclose(words[2], words[1])


def test_blocks_have_shares_of_their_own(
    sd1: Models, other: tuple[ModelRecipe, ClipRecipe], engine: DeviceEngine
) -> None:
    model, model2 = recipes(sd1)[0], other[0]
    merge = NodeCall(
        "ModelMergeBlocks",
        {"model1": model, "model2": model2, "input": 0.0, "middle": 1.0, "out": 0.25},
    )
    result = run_graph(
        Graph({"m": merge}), bare_context(engine), ResultCache("none"), targets=["m"]
    )
    first, second, merged = weights(model), weights(model2), weights(result.outputs["m"][0])
    shares = {
        "down_blocks": 0.0,
        "conv_in": 0.0,
        "time_embedding": 0.0,
        "mid_block": 1.0,
        "up_blocks": 0.25,
        "conv_out": 0.25,
    }
    for name in first:
        share = shares[name.split(".")[0].replace("conv_norm_out", "conv_out")]
        assert torch.allclose(
            merged[name], share * first[name] + (1 - share) * second[name], atol=1e-7
        ), name


def test_adding_a_difference_back_gives_the_model(
    sd1: Models, other: tuple[ModelRecipe, ClipRecipe], engine: DeviceEngine
) -> None:
    (model, clip), (model2, _) = recipes(sd1), other
    nodes = {
        "difference": NodeCall("ModelMergeSubtract", {"model1": model, "model2": model2}),
        "sum": NodeCall("ModelMergeAdd", {"model1": model2, "model2": Link("difference", 0)}),
    }
    assert (
        difference(painted(engine, Link("sum", 0), clip, **nodes), painted(engine, model, clip))
        < 1e-4
    )


def test_loras_before_a_merge_belong_to_their_side_and_after_it_to_the_whole(
    sd1: Models, other: tuple[ModelRecipe, ClipRecipe]
) -> None:
    model, model2 = recipes(sd1)[0], other[0]
    plain, plain2 = weights(model), weights(model2)
    before, after = lora(sd1, 0, 0.8), lora(sd1, 1, 0.5)
    delta_before, delta_after = (
        {name: weight - plain[name] for name, weight in weights(model.with_lora(one)).items()}
        for one in (before, after)
    )
    merged = weights(merged_model(model.with_lora(before), model2, HALF).with_lora(after))
    for name in plain:
        expected = (plain[name] + delta_before[name] + plain2[name]) / 2 + delta_after[name]
        assert torch.allclose(merged[name], expected, atol=1e-6), name
    assert any(delta.any() for delta in delta_before.values()) and any(
        delta.any() for delta in delta_after.values()
    )


def test_a_merge_leaves_no_trace_and_is_made_once(
    sd1: Models, other: tuple[ModelRecipe, ClipRecipe]
) -> None:
    model, model2 = recipes(sd1)[0], other[0]
    size = 4 * count_values(model.network)
    store = live.DeviceModels(store=partial(ModelStore, model_bytes=2 * size))
    expected = {name: weight.clone() for name, weight in store.patch(model).named_parameters()}
    merged = merged_model(model.with_lora(lora(sd1, 0, 0.8)), model2, HALF)
    assert store.patch(merged) is store.patch(merged)
    assert all(
        torch.equal(weight, expected[name])
        for name, weight in store.patch(model).named_parameters()
    )
    resident = {name: weight.clone() for name, weight in store.patch(merged).named_parameters()}
    for share in (0.1, 0.2):
        store.patch(merged_model(model, model2, (("", share, 1.0),)))
    # there is no room for the first one, which can be made again
    assert store.residents.use.resident_bytes == 2 * size
    assert all(
        torch.equal(weight, resident[name])
        for name, weight in store.patch(merged).named_parameters()
    )


def test_merges_of_merges_and_their_keys(
    sd1: Models, other: tuple[ModelRecipe, ClipRecipe]
) -> None:
    model, model2 = recipes(sd1)[0], other[0]
    half = merged_model(model, model2, HALF)
    quarter = weights(merged_model(half, model2, HALF))
    first, second = weights(model), weights(model2)
    assert all(
        torch.allclose(quarter[name], 0.25 * first[name] + 0.75 * second[name], atol=1e-6)
        for name in first
    )
    keys = {
        digest(one)
        for one in (
            model,
            half,
            merged_model(model, model2, (("", 0.4, 0.6),)),
            merged_model(model2, model, HALF),
        )
    }
    assert len(keys) == 4


def test_models_of_other_shapes_are_refused(
    sd1: Models, sdxl: Models, engine: DeviceEngine
) -> None:
    (model, clip), (large, large_clip) = recipes(sd1), recipes(sdxl)
    with pytest.raises(InputError, match="the UNets have different shapes"):
        merged_model(model, large, HALF)
    with pytest.raises(KatzError, match="it has 2 text encoders, the other 1"):
        merged_clip(clip, large_clip, HALF)


def test_merges_that_double_without_end_are_refused(sd1: Models) -> None:
    model, clip = recipes(sd1)
    with pytest.raises(InputError, match="a merge of more than 64 models"):
        for _ in range(100):
            model = merged_model(model, model, HALF)
    with pytest.raises(InputError, match="a merge of more than 64 models"):
        for _ in range(100):
            clip = merged_clip(clip, clip, HALF)
