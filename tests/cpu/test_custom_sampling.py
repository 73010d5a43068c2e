"""Custom samplers, guiders and schedules in parts give the same pictures as KSampler."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from katz_graph.core.errors import KatzError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import ConditioningEntry, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.packs import Registry, load_registry
from katz_graph.planner.sampling import table_of
from katz_graph.sampling.names import SamplerChoice
from katz_graph.sampling.schedules import schedule
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.requests import bare_context, local_engine

STEPS, SEED = 6, 5


@pytest.fixture(scope="module")
def engine(costs: Path) -> DeviceEngine:
    with local_engine(batching=False, cache=costs) as engine:
        yield engine


def text(models: Models, words: str) -> tuple[ConditioningEntry, ...]:
    return (ConditioningEntry(Prompt(pipeline_recipes(models.pipeline)[1], words)),)


def both_sides(models: Models) -> dict[str, Any]:
    return {
        "positive": text(models, "a red circle above sand"),
        "negative": text(models, "grey, blurred"),
    }


@cache
def registry() -> Registry:
    return load_registry()[0]


def run(
    engine: DeviceEngine, nodes: Mapping[str, NodeCall], target: str = "out"
) -> tuple[Any, ...]:
    result = run_graph(
        Graph(dict(nodes)), bare_context(engine), ResultCache("none"), targets=[target]
    )
    result.raise_failures()
    return result.outputs[target]


def samples(engine: DeviceEngine, nodes: Mapping[str, NodeCall], output: int = 0) -> Tensor:
    return run(engine, nodes)[output]["samples"]


def empty() -> dict[str, Tensor]:
    return {"samples": torch.zeros(1, 4, 8, 8)}


def plain(models: Models, **changes: Any) -> dict[str, NodeCall]:
    knobs = {
        "seed": SEED,
        "steps": STEPS,
        "cfg": 5.0,
        "sampler_name": "euler",
        "scheduler": "normal",
    }
    wires = {
        "model": pipeline_recipes(models.pipeline)[0],
        "latent_image": empty(),
        **both_sides(models),
    }
    return {"out": NodeCall("KSampler", {**knobs, **wires, **changes})}


def levels(models: Models) -> Tensor:
    return torch.tensor(schedule("normal", table_of(pipeline_recipes(models.pipeline)[0]), STEPS))


def guided(
    models: Models, guider: str, sampler: str = "euler", latent: Any = None, **inputs: Any
) -> dict[str, NodeCall]:
    wires = {
        "sampler": SamplerChoice(sampler),
        "sigmas": levels(models),
        "latent_image": latent or empty(),
    }
    return {
        "noise": NodeCall("RandomNoise", {"noise_seed": SEED}),
        "guider": NodeCall(guider, {"model": pipeline_recipes(models.pipeline)[0], **inputs}),
        "out": NodeCall(
            "SamplerCustomAdvanced",
            {"noise": Link("noise", 0), "guider": Link("guider", 0), **wires},
        ),
    }


def masked() -> dict[str, Tensor]:
    mask = torch.zeros(1, 1, 64, 64)
    mask[..., :32, :] = 1.0
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(2))
    return {"samples": latent, "noise_mask": mask}


@pytest.mark.parametrize("sampler", ["euler", "euler_ancestral", "dpmpp_2m"])
@pytest.mark.parametrize("latent", [empty(), masked()], ids=["empty", "masked"])
def test_the_three_samplers_are_one(
    sd1: Models, engine: DeviceEngine, sampler: str, latent: dict[str, Tensor]
) -> None:
    expected = samples(engine, plain(sd1, sampler_name=sampler, latent_image=latent))
    wires = {
        "sampler": SamplerChoice(sampler),
        "sigmas": levels(sd1),
        "latent_image": latent,
        **both_sides(sd1),
    }
    knobs = {"model": pipeline_recipes(sd1.pipeline)[0], "noise_seed": SEED, "cfg": 5.0}
    assert torch.equal(
        samples(engine, {"out": NodeCall("SamplerCustom", {**wires, **knobs})}), expected
    )
    assert torch.equal(
        samples(engine, guided(sd1, "CFGGuider", sampler, latent, cfg=5.0, **both_sides(sd1))),
        expected,
    )


def test_the_other_keys_of_a_latent_stay(sd1: Models, engine: DeviceEngine) -> None:
    outputs = run(engine, guided(sd1, "CFGGuider", latent=masked(), cfg=5.0, **both_sides(sd1)))
    assert all(set(output) == {"samples", "noise_mask"} for output in outputs)


def test_the_denoised_output_is_the_last_step_s_prediction(
    sd1: Models, engine: DeviceEngine
) -> None:
    """Euler to 0 ends in the denoised prediction; earlier, x' = x + (σ' - σ)(x - denoised) / σ
    holds.
    """
    whole = guided(sd1, "CFGGuider", cfg=5.0, **both_sides(sd1))
    latent, denoised = (output["samples"] for output in run(engine, whole))
    assert difference(denoised, latent) < 1e-6
    sigmas = levels(sd1)
    once, twice = (
        run(
            engine,
            whole
            | {
                "out": NodeCall(
                    "SamplerCustomAdvanced", {**whole["out"].inputs, "sigmas": sigmas[:count]}
                )
            },
        )
        for count in (2, 3)
    )
    before, after = once[0]["samples"], twice[0]["samples"]
    by_hand = before - (after - before) * sigmas[1] / (sigmas[2] - sigmas[1])
    assert difference(twice[1]["samples"], by_hand) < 1e-5


def test_without_levels_or_steps_the_latent_stays(sd1: Models, engine: DeviceEngine) -> None:
    nodes = guided(sd1, "CFGGuider", latent=masked(), cfg=5.0, **both_sides(sd1))
    nodes["out"] = NodeCall(
        "SamplerCustomAdvanced", {**nodes["out"].inputs, "sigmas": torch.tensor([])}
    )
    latent, denoised = run(engine, nodes)
    assert torch.allclose(latent["samples"], masked()["samples"]) and torch.equal(
        latent["samples"], denoised["samples"]
    )


def advanced(
    models: Models, first: int, last: int, add_noise: str, leftover: str, latent: Any
) -> dict[str, NodeCall]:
    base = dict(plain(models)["out"].inputs)
    base["noise_seed"] = base.pop("seed")
    part = {
        "start_at_step": first,
        "end_at_step": last,
        "add_noise": add_noise,
        "return_with_leftover_noise": leftover,
    }
    return {"out": NodeCall("KSamplerAdvanced", {**base, **part, "latent_image": latent})}


def test_a_schedule_in_two_parts_is_the_whole_schedule(sd1: Models, engine: DeviceEngine) -> None:
    half = run(engine, advanced(sd1, 0, 3, "enable", "enable", empty()))[0]
    both = samples(engine, advanced(sd1, 3, 10000, "disable", "disable", half))
    assert difference(both, samples(engine, plain(sd1))) < 1e-5
    # the last step goes to 0
    early = samples(engine, advanced(sd1, 0, 3, "enable", "disable", empty()))
    assert 1e-3 < difference(early, half["samples"]) < torch.inf


def test_disabled_noise_starts_from_the_latent_as_it_is(sd1: Models, engine: DeviceEngine) -> None:
    """Below the table's maximum, AddNoise before a sampler without noise equals a sampler with
    noise.
    """
    sigmas = levels(sd1)[2:]
    model = pipeline_recipes(sd1.pipeline)[0]
    whole = guided(sd1, "CFGGuider", latent=masked(), cfg=5.0, **both_sides(sd1))
    inputs = {
        **whole["out"].inputs,
        "sigmas": sigmas,
        "latent_image": {"samples": masked()["samples"]},
    }
    expected = samples(engine, whole | {"out": NodeCall("SamplerCustomAdvanced", inputs)})
    noisy = NodeCall(
        "AddNoise",
        {
            "model": model,
            "noise": Link("noise", 0),
            "sigmas": sigmas,
            "latent_image": inputs["latent_image"],
        },
    )
    parts = whole | {"none": NodeCall("DisableNoise", {}), "noisy": noisy}
    parts["out"] = NodeCall(
        "SamplerCustomAdvanced",
        {**inputs, "noise": Link("none", 0), "latent_image": Link("noisy", 0)},
    )
    assert difference(samples(engine, parts), expected) < 1e-5


def test_a_basic_guider_is_guidance_1(sd1: Models, engine: DeviceEngine) -> None:
    sides = both_sides(sd1)
    alone = samples(engine, guided(sd1, "BasicGuider", conditioning=sides["positive"]))
    assert torch.equal(alone, samples(engine, plain(sd1, cfg=1.0)))


def test_dual_guidance_reduces_to_guidance(sd1: Models, engine: DeviceEngine) -> None:
    """With equal second conditioning, or a scale of 1, only one of the two guidances is effective."""
    sides, other = both_sides(sd1), text(sd1, "a blue star")
    dual = {"cond1": sides["positive"], "negative": sides["negative"]}
    expected = samples(engine, plain(sd1))
    for style in ("regular", "nested"):
        same = guided(
            sd1,
            "DualCFGGuider",
            **dual,
            cond2=sides["positive"],
            cfg_conds=3.0,
            cfg_cond2_negative=5.0,
            style=style,
        )
        assert difference(samples(engine, same), expected) < 1e-5
    against_other = samples(engine, plain(sd1, negative=other))
    for style in ("regular", "nested"):
        single = guided(
            sd1,
            "DualCFGGuider",
            **dual,
            cond2=other,
            cfg_conds=5.0,
            cfg_cond2_negative=1.0,
            style=style,
        )
        assert difference(samples(engine, single), against_other) < 1e-5
    both = [
        samples(
            engine,
            guided(
                sd1,
                "DualCFGGuider",
                **dual,
                cond2=other,
                cfg_conds=5.0,
                cfg_cond2_negative=2.0,
                style=style,
            ),
        )
        for style in ("regular", "nested")
    ]
    assert 1e-3 < difference(both[0], both[1]) < torch.inf


def test_a_sampler_without_conditioning_is_refused_in_one_line(
    sd1: Models, engine: DeviceEngine
) -> None:
    with pytest.raises(KatzError, match="the positive conditioning is empty"):
        run(engine, guided(sd1, "BasicGuider", conditioning=()))
