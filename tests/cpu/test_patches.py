"""Patches of a model: FreeU, guidance, other sampling and functions of packs, compared with the
papers and with the unpatched model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from katz_graph.core.errors import InputError, KatzError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.guidance_spec import Guider
from katz_graph.core.patches import (
    ContinuousSampling,
    DiscreteSampling,
    FlowSampling,
    FreeU,
    OpaquePatch,
    Patch,
    RescaledGuidance,
)
from katz_graph.core.recipe import ConditioningEntry, ModelRecipe, Prompt, digest
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.ir.values import Step
from katz_graph.models.families.unet.freeu import scale_backbone, scale_low_frequencies, skip_hook
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.packs import Registry, load_registry
from katz_graph.planner.passes.expand import expand_guider
from katz_graph.planner.report.describe import as_json
from katz_graph.planner.report.text import as_text
from katz_graph.planner.sampling import predicts_flow, table_of
from katz_graph.sampling.guidance import guided, rescaled
from katz_graph.sampling.prediction import scale_model_input, to_denoised
from katz_graph.sampling.schedules import schedule
from katz_graph.testing.model_files import Models, difference
from katz_graph.testing.requests import bare_context, bind, local_engine


@pytest.fixture(scope="module")
def engine(costs: Path) -> DeviceEngine:
    with local_engine(batching=False, cache=costs) as engine:
        yield engine


def text(models: Models, words: str) -> tuple[ConditioningEntry, ...]:
    return (ConditioningEntry(Prompt(pipeline_recipes(models.pipeline)[1], words)),)


def patched(models: Models, *patches: Patch) -> ModelRecipe:
    return replace(pipeline_recipes(models.pipeline)[0], patches=patches)


@cache
def registry() -> Registry:
    return load_registry()[0]


def run(engine: DeviceEngine, nodes: Mapping[str, NodeCall], target: str = "out") -> Tensor:
    result = run_graph(
        Graph(dict(nodes)), bare_context(engine), ResultCache("none"), targets=[target]
    )
    result.raise_failures()
    return result.outputs[target][0]["samples"]


def sampler(models: Models, model: Any, type_: str = "KSampler", **changes: Any) -> NodeCall:
    inputs = {
        "model": model,
        "positive": text(models, "a red circle above sand"),
        "negative": text(models, "grey, blurred"),
        "latent_image": {"samples": torch.zeros(1, 4, 8, 8)},
        "seed": 5,
        "steps": 4,
    }
    return NodeCall(type_, inputs | changes)


def painted(engine: DeviceEngine, models: Models, *patches: Patch, **changes: Any) -> Tensor:
    return run(engine, {"out": sampler(models, patched(models, *patches), **changes)})


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# FreeU


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_freeu_with_all_factors_1_changes_nothing(
    family: str, request: pytest.FixtureRequest, engine: DeviceEngine
) -> None:
    models = request.getfixturevalue(family)
    plain = painted(engine, models, steps=2)
    for version in (1, 2):
        assert torch.equal(
            painted(engine, models, FreeU(version, 1.0, 1.0, 1.0, 1.0), steps=2), plain
        )
        changed = painted(engine, models, FreeU(version, 1.3, 1.4, 0.9, 0.2), steps=2)
        assert 1e-4 < difference(changed, plain) < torch.inf


def test_freeu_nodes_patch_a_model(sd1: Models, engine: DeviceEngine) -> None:
    model = pipeline_recipes(sd1.pipeline)[0]
    for node, version, b1, b2 in (("FreeU", 1, 1.1, 1.2), ("FreeU_V2", 2, 1.3, 1.4)):
        nodes = {"freeu": NodeCall(node, {"model": model}), "out": sampler(sd1, Link("freeu", 0))}
        assert torch.equal(
            run(engine, nodes), painted(engine, sd1, FreeU(version, b1, b2, 0.9, 0.2))
        )


def test_the_backbone_is_scaled_as_in_the_paper() -> None:
    """Scales half of the channels; in version 2 by the channel mean, normalised to 0..1 per sample."""
    hidden = random(2, 6, 4, 4)
    scaled = scale_backbone(hidden, 1.5)
    assert torch.equal(scaled[:, :3], hidden[:, :3] * 1.5) and torch.equal(
        scaled[:, 3:], hidden[:, 3:]
    )
    for one, by_mean in zip(hidden, scale_backbone(hidden, 1.5, by_mean=True), strict=True):
        mean = one.mean(0)
        weight = (mean - mean.min()) / (mean.max() - mean.min())
        assert torch.allclose(by_mean[:3], one[:3] * (0.5 * weight + 1)) and torch.equal(
            by_mean[3:], one[3:]
        )
    flat = torch.ones(1, 4, 1, 1)
    assert torch.isfinite(scale_backbone(flat, 1.5, by_mean=True)).all()


def test_only_the_low_frequencies_of_a_skip_are_scaled() -> None:
    rows = torch.arange(8) * 2 * math.pi / 8
    constant, slow, fast = (
        torch.ones(8, 8),
        (-rows).sin().expand(8, 8),
        (rows * 3).cos().expand(8, 8),
    )
    scaled = scale_low_frequencies((constant + fast)[None, None], 0.25)
    assert torch.allclose(scaled, (0.25 * constant + fast)[None, None], atol=1e-6)
    # half of the slowest wave's spectrum is in the 2 x 2 box around zero
    assert torch.allclose(
        scale_low_frequencies(slow[None, None], 0.0).abs().max(), torch.tensor(0.5), atol=1e-6
    )


def test_freeu_acts_where_the_backbone_is_four_and_two_times_as_wide_as_the_model() -> None:
    unet = type("Unet", (), {"config": type("Config", (), {"block_out_channels": (4, 8, 16)})})
    hook = skip_hook(unet, [FreeU(1, 2.0, 3.0, 1.0, 1.0)])
    assert hook is not None
    for channels, factor in ((16, 2.0), (8, 3.0), (4, 1.0)):
        hidden, _ = hook(0, torch.ones(1, channels, 2, 2), torch.ones(1, 1, 2, 2))
        assert hidden[0, 0, 0, 0] == factor and hidden[0, -1, 0, 0] == 1.0


# Guidance


def a_step(sigma: float = 3.0, x: Tensor | None = None, timestep: float = 500.0) -> Step:
    x = random(2, 4, 8, 8) * sigma if x is None else x
    return Step.of(x, scale_model_input(x, sigma), sigma, timestep)


def test_rescaled_guidance_has_the_contrast_of_the_conditional_prediction() -> None:
    """Lin et al. 2024, section 3.4, on v-predictions v = (x / (σ² + 1) - denoised) · sqrt(σ² + 1) /
    σ.
    """
    step, cond, uncond = a_step(), random(2, 4, 8, 8, seed=1), random(2, 4, 8, 8, seed=2)

    def v(denoised: Tensor) -> Tensor:
        return (step.x / 10 - denoised) * math.sqrt(10) / 3

    full = v(rescaled(cond, uncond, 7.0, 1.0, step))
    plain = v(guided(cond, uncond, 7.0))
    assert torch.allclose(full.std(dim=(1, 2, 3)), v(cond).std(dim=(1, 2, 3)), rtol=1e-4)
    assert torch.allclose(
        full / full.std(dim=(1, 2, 3), keepdim=True),
        plain / plain.std(dim=(1, 2, 3), keepdim=True),
        atol=1e-4,
    )
    blended = v(rescaled(cond, uncond, 7.0, 0.7, step))
    assert torch.allclose(blended, 0.7 * full + 0.3 * plain, atol=1e-4)


def test_rescaled_guidance_of_a_flow_has_the_contrast_of_the_denoised_picture() -> None:
    draw = torch.Generator().manual_seed(3)
    cond, uncond, x = (torch.randn(2, 4, 8, 8, generator=draw) for _ in range(3))
    step = Step.of(x, x, 0.5, 500.0)
    full = rescaled(cond, uncond, 7.0, 1.0, step, on_flow=True)
    plain = guided(cond, uncond, 7.0)
    axes = (1, 2, 3)
    assert torch.allclose(full.std(dim=axes), cond.std(dim=axes), rtol=1e-5)
    share = full / plain
    assert torch.allclose(share, share.mean(dim=axes, keepdim=True).expand_as(share), rtol=1e-4)
    blended = rescaled(cond, uncond, 7.0, 0.7, step, on_flow=True)
    assert torch.allclose(blended, 0.7 * full + 0.3 * plain, atol=1e-5)


def test_a_flow_is_recognised_by_its_levels(sd1: Models) -> None:
    model, _, _ = pipeline_recipes(sd1.pipeline)
    assert not predicts_flow(model)
    assert predicts_flow(model.with_patch(FlowSampling(3.0)))


def test_rescaled_guidance_of_multiplier_0_is_plain(sd1: Models, engine: DeviceEngine) -> None:
    plain = painted(engine, sd1)
    assert torch.equal(painted(engine, sd1, RescaledGuidance(0.0)), plain)
    nodes = {
        "rescale": NodeCall("RescaleCFG", {"model": pipeline_recipes(sd1.pipeline)[0]}),
        "out": sampler(sd1, Link("rescale", 0)),
    }
    changed = run(engine, nodes)
    assert difference(changed, plain) > 1e-3 and torch.isfinite(changed).all()
    assert torch.equal(
        painted(engine, sd1, RescaledGuidance(0.7), cfg=1.0), painted(engine, sd1, cfg=1.0)
    )


def standard(args: Mapping[str, Any]) -> Tensor:
    return args["uncond"] + (args["cond"] - args["uncond"]) * args["cond_scale"]


def test_a_function_that_does_standard_guidance_gives_the_standard_picture(
    sd1: Models, engine: DeviceEngine
) -> None:
    plain = painted(engine, sd1)
    assert (
        difference(painted(engine, sd1, OpaquePatch("cfg_function", "standard", standard)), plain)
        < 1e-6
    )
    post = OpaquePatch(
        "post_cfg_function",
        "again",
        lambda args: (
            args["uncond_denoised"] + (args["cond_denoised"] - args["uncond_denoised"]) * 8.0
        ),
    )
    assert difference(painted(engine, sd1, post), plain) < 1e-6
    halved = OpaquePatch("post_cfg_function", "halved", lambda args: args["denoised"] * 0.5)
    assert 1e-3 < difference(painted(engine, sd1, halved), plain) < torch.inf


def test_functions_get_the_ecosystem_s_arguments(sd1: Models, engine: DeviceEngine) -> None:
    seen: list[Mapping[str, Any]] = []

    def watch(args: Mapping[str, Any]) -> Tensor:
        seen.append(args)
        return standard(args)

    painted(engine, sd1, OpaquePatch("cfg_function", "watch", watch), cfg=3.0)
    table = table_of(pipeline_recipes(sd1.pipeline)[0])
    assert [float(args["sigma"][0]) for args in seen] == pytest.approx(
        schedule("normal", table, 4)[:-1]
    )
    for args in seen:
        assert args["sigma"].shape == (1,) and args["cond_scale"] == 3.0
        assert torch.equal(args["cond"], args["input"] - args["cond_denoised"])
        assert torch.equal(args["uncond"], args["input"] - args["uncond_denoised"])


def test_at_guidance_1_the_negative_side_is_computed_only_for_a_patch_that_needs_it(
    sd1: Models, engine: DeviceEngine
) -> None:
    def uncond_seen(kind: Any, **flags: Any) -> bool:
        seen: list[bool] = []

        def watch(args: Mapping[str, Any]) -> Tensor:
            seen.append(bool(args["uncond_denoised"].any()))
            return standard(args) if kind == "cfg_function" else args["denoised"]

        painted(engine, sd1, OpaquePatch(kind, "watch", watch, **flags), cfg=1.0)
        return seen[0]

    assert uncond_seen("cfg_function")
    assert not uncond_seen("post_cfg_function")
    assert uncond_seen("post_cfg_function", needs_uncond=True)


def test_a_function_that_gives_no_prediction_is_named(sd1: Models, engine: DeviceEngine) -> None:
    with pytest.raises(
        KatzError,
        match=r"cfg_function mine returned a NoneType, expected a tensor of \[1, 4, 8, 8\]",
    ):
        painted(engine, sd1, OpaquePatch("cfg_function", "mine", lambda args: None))


def test_the_last_guidance_counts_and_identity_is_the_key(
    sd1: Models, engine: DeviceEngine
) -> None:
    function = OpaquePatch("cfg_function", "standard", standard)
    assert (
        difference(painted(engine, sd1, RescaledGuidance(0.7), function), painted(engine, sd1))
        < 1e-6
    )
    assert torch.equal(
        painted(engine, sd1, function, RescaledGuidance(0.7)),
        painted(engine, sd1, RescaledGuidance(0.7)),
    )
    other = OpaquePatch("cfg_function", "other", standard)
    again = OpaquePatch("cfg_function", "standard", lambda args: standard(args))
    assert (
        digest(patched(sd1, function)) == digest(patched(sd1, again)) != digest(patched(sd1, other))
    )


# A function around the UNet


@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_a_wrapper_that_only_calls_the_model_changes_nothing(
    family: str, request: pytest.FixtureRequest, engine: DeviceEngine
) -> None:
    models, sides = request.getfixturevalue(family), []

    def wrapper(apply_model: Any, args: Mapping[str, Any]) -> Tensor:
        sides.append(args["cond_or_uncond"])
        return apply_model(args["input"], args["timestep"], **args["c"])

    plain = painted(engine, models)
    assert torch.equal(
        painted(engine, models, OpaquePatch("network_wrapper", "calls", wrapper)), plain
    )
    assert sorted(sides) == [[0]] * 4 + [[1]] * 4


def test_a_wrapper_may_call_the_model_with_something_else(
    sd1: Models, engine: DeviceEngine
) -> None:
    def again(apply_model: Any, args: Mapping[str, Any]) -> Tensor:
        c = dict(args["c"], c_crossattn=args["c"]["c_crossattn"].clone())
        return apply_model(args["input"].clone(), args["timestep"].clone(), **c)

    def halved(apply_model: Any, args: Mapping[str, Any]) -> Tensor:
        return apply_model(args["input"] * 0.5, args["timestep"] * 0.5, **args["c"])

    plain = painted(engine, sd1)
    assert (
        difference(painted(engine, sd1, OpaquePatch("network_wrapper", "again", again)), plain)
        < 1e-5
    )
    changed = painted(engine, sd1, OpaquePatch("network_wrapper", "halved", halved))
    assert 1e-3 < difference(changed, plain) < torch.inf


def test_a_loop_drawn_by_hand_does_not_lose_a_patch(sd1: Models, engine: DeviceEngine) -> None:
    def drawn(patch: Patch, combine: str = "CFGCombine") -> Tensor:
        model = patched(sd1, patch)
        latent = {"samples": torch.zeros(1, 4, 8, 8)}
        expansion = expand_guider(
            "StepBegin",
            {"latent_image": latent, "steps": 2},
            guider(sd1, pipeline_recipes(sd1.pipeline)[0]),
        )
        nodes = {
            name: replace(
                call,
                inputs={**call.inputs, "model": model} if "model" in call.inputs else call.inputs,
            )
            for name, call in expansion.graph.nodes.items()
        }
        extra = {} if combine == "CFGCombine" else {"step": Link("begin", 0), "model": model}
        nodes["guidance"] = NodeCall(combine, {**nodes["guidance"].inputs, **extra})
        return engine.sample(bind(Graph(nodes), "end"), bare_context(engine))[0]["samples"]

    with pytest.raises(InputError, match="use PatchedCFGCombine"):
        drawn(RescaledGuidance(0.7))
    assert torch.equal(
        drawn(RescaledGuidance(0.7), "PatchedCFGCombine"),
        painted(engine, sd1, RescaledGuidance(0.7), seed=0, steps=2),
    )
    with pytest.raises(InputError, match="use WrappedUNet"):
        drawn(OpaquePatch("network_wrapper", "calls", standard))


def guider(models: Models, model: ModelRecipe) -> Guider:
    return Guider(
        "cfg",
        model,
        text(models, "a red circle above sand"),
        text(models, "grey, blurred"),
        guidance=8.0,
    )


def test_a_plan_names_its_pins(sd1: Models, engine: DeviceEngine) -> None:
    latent = {"samples": torch.zeros(1, 4, 8, 8)}

    def plan(*patches: Patch) -> Any:
        expansion = expand_guider(
            "StepBegin", {"latent_image": latent}, guider(sd1, patched(sd1, *patches))
        )
        return engine.plan(bind(expansion.graph, "end"))

    pinned = plan(
        OpaquePatch("network_wrapper", "mine", standard),
        OpaquePatch("cfg_function", "other", standard),
    )
    assert (
        "pinned to one device of this process, without graphs: network_wrapper mine, "
        "cfg_function other" in as_text(pinned)
    )
    free = plan(RescaledGuidance(0.5), FreeU(1, 1.1, 1.2, 0.9, 0.2))
    assert as_json(free)["pinned_by"] == [] and "pinned" not in as_text(free)
    assert sum(work.flops for work in pinned.work.values()) == pytest.approx(
        sum(work.flops for work in free.work.values())
    )


def test_the_diffusers_sampler_refuses_unsupported_inputs(
    sd1: Models, engine: DeviceEngine
) -> None:
    inputs = {name: value for name, value in sampler(sd1, None).inputs.items() if name != "model"}
    refused = {
        "out": NodeCall(
            "DiffusersSampler", {**inputs, "model": patched(sd1, RescaledGuidance(0.7))}
        )
    }
    with pytest.raises(KatzError, match=r"the model has a patch \(RescaledGuidance\)"):
        run(engine, refused)


# Sampling


def test_v_prediction_with_zero_terminal_snr(sd1: Models, engine: DeviceEngine) -> None:
    """Lin et al. 2024, algorithm 1: sqrt(ᾱ) shifted to end in 0 and scaled to keep its first value;
    the last level is 4518.76.
    """
    model = patched(sd1, DiscreteSampling("v_prediction", zero_terminal_snr=True))
    roots = (table_of(patched(sd1)).sigmas.double() ** 2 + 1).rsqrt()
    shifted = (roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])
    table = table_of(model)
    assert torch.allclose(table.sigmas[:-1].double(), (1 / shifted[:-1] ** 2 - 1).sqrt(), rtol=1e-3)
    assert table.sigma_max == pytest.approx(4518.76, abs=0.01)
    nodes = {
        "sampling": NodeCall(
            "ModelSamplingDiscrete",
            {"model": pipeline_recipes(sd1.pipeline)[0], "sampling": "v_prediction", "zsnr": True},
        ),
        "out": sampler(sd1, Link("sampling", 0)),
    }
    assert torch.isfinite(run(engine, nodes)).all()
    assert torch.equal(run(engine, nodes), run(engine, {"out": sampler(sd1, model)}))


@pytest.mark.parametrize("sampling", ["eps", "v_prediction", "x0", "lcm"])
def test_the_patch_sets_the_output_s_meaning(sampling: Any, sd1: Models) -> None:
    """The output of a perfect model, for a latent of a known picture and noise, gives the picture."""
    table = table_of(patched(sd1, DiscreteSampling(sampling)))
    picture, noise, sigma = (
        random(1, 4, 8, 8, seed=1),
        random(1, 4, 8, 8, seed=2),
        float(table.sigmas[len(table.sigmas) // 2]),
    )
    x, variance = picture + sigma * noise, sigma**2 + 1
    output = {
        "eps": noise,
        "lcm": noise,
        "x0": picture,
        "v_prediction": (noise - sigma * picture) / math.sqrt(variance),
    }[sampling]
    step = a_step(sigma, x, table.timestep_at(sigma))
    bound = 1e-5 if sampling != "lcm" else 1e-3  # c_skip and c_out are not quite 0 and 1
    assert torch.allclose(to_denoised(output, step, table.parametrisation), picture, atol=bound)


def test_a_plain_patch_of_sampling_changes_nothing(sd1: Models, engine: DeviceEngine) -> None:
    assert torch.equal(painted(engine, sd1, DiscreteSampling("eps")), painted(engine, sd1))
    found = difference(painted(engine, sd1, DiscreteSampling("x0")), painted(engine, sd1))
    assert 1e-3 < found < torch.inf


def test_a_distilled_model_is_asked_at_every_twentieth_timestep(
    sd1: Models, engine: DeviceEngine
) -> None:
    trained, table = table_of(patched(sd1)), table_of(patched(sd1, DiscreteSampling("lcm")))
    assert torch.equal(table.sigmas, trained.sigmas[19::20])
    assert [table.timestep_at(sigma) for sigma in table.sigmas] == list(range(19, 1000, 20))
    assert torch.allclose(
        table.sigma_at(torch.tensor([19.0, 499.0, 999.0])), trained.sigmas[[19, 499, 999]]
    )
    assert table.percent_to_sigma(0.5) == pytest.approx(trained.percent_to_sigma(0.5), rel=1e-2)
    assert torch.isfinite(painted(engine, sd1, DiscreteSampling("lcm"), cfg=1.0)).all()


@pytest.mark.parametrize("sampling", ["eps", "v_prediction", "edm"])
def test_continuous_noise_levels(sampling: Any, sd1: Models, engine: DeviceEngine) -> None:
    """Karras et al. 2022, table 1: the model gets ln(σ) / 4; EDM's scalings keep a known picture."""
    patch = ContinuousSampling(sampling, sigma_max=80.0, sigma_min=0.01)
    table = table_of(patched(sd1, patch))
    assert (table.sigma_max, table.sigma_min) == (pytest.approx(80.0), pytest.approx(0.01))
    assert table.timestep_at(math.e**2) == pytest.approx(0.5)
    assert float(table.sigma_at(torch.tensor(0.5))) == pytest.approx(math.e**2)
    assert table.percent_to_sigma(0.5) == pytest.approx(math.sqrt(80.0 * 0.01))
    assert torch.isfinite(painted(engine, sd1, patch)).all()
    if sampling == "edm":
        picture, x, sigma = random(1, 4, 8, 8, seed=1), random(1, 4, 8, 8, seed=2) * 4, 4.0
        skip, out, into = 0.25 / 16.25, 4 * 0.5 / math.sqrt(16.25), 1 / math.sqrt(16.25)
        assert torch.allclose(scale_model_input(x, sigma, "edm"), x * into)
        assert torch.allclose(
            to_denoised((picture - skip * x) / out, a_step(sigma, x), "edm"), picture, atol=1e-5
        )


def test_a_model_is_sampled_as_a_flow_of_the_shift_that_a_node_gives(
    sd1: Models, engine: DeviceEngine
) -> None:
    """FLUX's shift is e^1.15 for 512x2048 (4,096 tokens, as 1024²), e^0.5 for 256²."""
    model = pipeline_recipes(sd1.pipeline)[0]
    for node, inputs, patch in (
        ("ModelSamplingSD3", {"shift": 2.0}, FlowSampling(2.0)),
        ("ModelSamplingAuraFlow", {"shift": 2.0}, FlowSampling(2.0, multiplier=1.0)),
        (
            "ModelSamplingFlux",
            {"width": 512, "height": 2048},
            FlowSampling(math.exp(1.15), 10_000, 1.0),
        ),
        (
            "ModelSamplingFlux",
            {"width": 256, "height": 256},
            FlowSampling(math.exp(0.5), 10_000, 1.0),
        ),
    ):
        nodes = {
            "patch": NodeCall(node, {"model": model, **inputs}),
            "out": sampler(sd1, Link("patch", 0)),
        }
        picture = run(engine, nodes)
        assert torch.isfinite(picture).all()
        assert torch.equal(picture, painted(engine, sd1, patch))
    found = difference(painted(engine, sd1, FlowSampling(2.0)), painted(engine, sd1))
    assert 1e-3 < found < torch.inf
    wrong = {
        "patch": NodeCall("ModelSamplingSD3", {"model": model, "shift": 0.0}),
        "out": sampler(sd1, Link("patch", 0)),
    }
    with pytest.raises(KatzError, match="shift: expected a number above 0, got 0"):
        run(engine, wrong)


def test_unsupported_patches_are_refused_by_name(sd1: Models, engine: DeviceEngine) -> None:
    for node, inputs, message in (
        (
            "ModelSamplingDiscrete",
            {"sampling": "img_to_img"},
            "'img_to_img' is not supported; choose eps, v_prediction, lcm or x0",
        ),
        (
            "ModelSamplingContinuousEDM",
            {"sampling": "cosmos_rflow"},
            "'cosmos_rflow' is not supported; choose",
        ),
        (
            "ModelSamplingContinuousEDM",
            {"sigma_min": 9.0, "sigma_max": 1.0},
            "expected 0 < sigma_min < sigma_max, got 9 and 1",
        ),
    ):
        nodes = {
            "patch": NodeCall(node, {"model": pipeline_recipes(sd1.pipeline)[0], **inputs}),
            "out": sampler(sd1, Link("patch", 0)),
        }
        with pytest.raises(KatzError, match=message):
            run(engine, nodes)
