"""Guidance that combines predictions by norms, by projection, or with the prediction of a
transformer without some blocks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from node_calls import call
from torch import Tensor, nn
from transformers_made import COSTED, PROMPTS, in_stages, inputs, region_of
from transformers_made import forward as stock_forward

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.guidance_spec import Guider
from katz_graph.core.patches import (
    NormedDifference,
    NormedGuidance,
    Patch,
    SkipLayerGuidance,
    SkipLayerNegative,
    SkippedBlocks,
    ZeroStar,
)
from katz_graph.core.recipe import ConditioningEntry, ControlUse, ModelRecipe, Picture, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.ir.values import Step
from katz_graph.models.family import block_numbers
from katz_graph.models.loading.sources import controlnet_recipe, pipeline_recipes
from katz_graph.models.stage_registry import stage
from katz_graph.planner.passes.expand import expand_guider
from katz_graph.planner.sampling import table_of
from katz_graph.sampling.guidance import (
    away_from,
    guided,
    normed,
    normed_difference,
    patched_guidance,
    zero_star,
)
from katz_graph.sampling.schedules import schedule
from katz_graph.testing.random_models import Kind, draw_controlnet, make_pipeline
from katz_graph.testing.random_models import draw_network as made
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.worker_threads import WorkerThreads

torch.set_num_threads(1)
EACH: tuple[Kind, ...] = ("sd35", "flux", "z_image", "hunyuan_dit")
CHAINED: tuple[Kind, ...] = ("sd35", "flux")
GUIDANCE = 4.0
ALWAYS = (0.0, 1.0)
ONE = Target((Device("cpu", 1e9, 1e9),))
MIDDLE = SkippedBlocks((1,), (0,), *ALWAYS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    made = {kind: tmp_path_factory.mktemp(kind) for kind in EACH}
    for kind, place in made.items():
        make_pipeline(place, kind, 1)
    return made


def drawn(seed: int) -> Tensor:
    return torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(seed))


def step() -> Step:
    x = drawn(3)
    return Step.of(x, x, 0.7, 700)


# Formulas


def test_a_normed_prediction_is_nowhere_longer_than_the_conditional_one() -> None:
    cond, whole = drawn(0), drawn(1) * torch.tensor([0.1, 0.5, 1.0, 2.0, 8.0])
    lengths = [one.norm(dim=1) for one in (whole, cond, normed(whole, cond, 1.0))]
    assert torch.allclose(lengths[2], torch.minimum(*lengths[:2]), rtol=1e-5)
    assert (lengths[0] > lengths[1]).any() and (lengths[0] < lengths[1]).any()
    assert torch.equal(normed(whole, cond, 0.5), normed(whole, cond, 1.0) * 0.5)
    # parallel to guided
    share = normed(whole, cond, 1.0) / whole
    assert torch.allclose(share, share[:, :1].expand_as(share), rtol=1e-5)


def test_a_normed_difference_has_the_length_of_the_conditional_one() -> None:
    cond, uncond, one = drawn(0), drawn(1), step()
    plain = guided(cond, uncond, GUIDANCE)
    full = normed_difference(cond, uncond, GUIDANCE, 1.0, one)
    assert torch.allclose((one.x - full).norm(dim=1), (one.x - cond).norm(dim=1), rtol=1e-5)
    half = normed_difference(cond, uncond, GUIDANCE, 0.5, one)
    assert torch.allclose(half, (full + plain) / 2, atol=1e-5)
    assert torch.allclose(normed_difference(cond, uncond, GUIDANCE, 0.0, one), plain, atol=1e-5)
    nothing = torch.zeros_like(one.x)
    still = normed_difference(one.x, one.x, GUIDANCE, 1.0, one)
    assert torch.allclose(one.x - still, nothing, atol=1e-6)


def test_zero_star_guides_from_the_part_of_the_negative_that_lies_along_the_positive() -> None:
    """For each sample, s u is nearest to v; if v is a multiple of u, s is the factor."""
    one, uncond = step(), drawn(1)
    cond = one.x - 0.25 * (one.x - uncond)
    plain = guided(cond, uncond, GUIDANCE)
    expected = guided(cond, 0.25 * uncond, GUIDANCE)
    assert torch.allclose(zero_star(plain, cond, uncond, GUIDANCE, one), expected, atol=1e-5)
    other = drawn(2)
    plain = guided(other, uncond, GUIDANCE)
    found = zero_star(plain, other, uncond, GUIDANCE, one)
    share = ((found - GUIDANCE * other) / ((1 - GUIDANCE) * uncond))[:, 0, 0, 0]
    v, u = (one.x - prediction for prediction in (other, uncond))
    for number, s in enumerate(share.tolist()):
        left = [(v[number] - near * u[number]).norm() for near in (s - 0.01, s, s + 0.01)]
        assert left[1] == min(left)
    assert (share[0] - share[1]).abs() > 1e-3


def test_guidance_away_from_a_weakened_prediction() -> None:
    cond, weak, whole = drawn(0), drawn(1), drawn(2)
    plain = away_from(whole, cond, weak, 3.0, 0.0)
    assert torch.equal(plain, whole + (cond - weak) * 3.0)
    axes = (1, 2, 3)
    full = away_from(whole, cond, weak, 3.0, 1.0)
    assert torch.allclose(full.std(dim=axes), cond.std(dim=axes), rtol=1e-5)
    assert torch.allclose(
        away_from(whole, cond, weak, 3.0, 0.3), 0.3 * full + 0.7 * plain, atol=1e-5
    )


def test_patches_after_guidance_act_in_their_order() -> None:
    """Without a negative prediction, patches that need it do nothing."""
    cond, uncond, one = drawn(0), drawn(1), step()
    plain = guided(cond, uncond, GUIDANCE)

    def found(*patches: Patch, uncond: Tensor | None = uncond, weak: Any = ()) -> Tensor:
        return patched_guidance(Patched(patches), one, cond, uncond, GUIDANCE, False, weak)

    weak, blocks = drawn(4), SkipLayerGuidance(MIDDLE, 2.0)
    first = normed(zero_star(plain, cond, uncond, GUIDANCE, one), cond, 0.9)
    assert torch.equal(found(ZeroStar(), NormedGuidance(0.9)), first)
    second = zero_star(normed(plain, cond, 0.9), cond, uncond, GUIDANCE, one)
    assert torch.equal(found(NormedGuidance(0.9), ZeroStar()), second)
    twice = away_from(away_from(plain, cond, weak, 2.0, 0.0), cond, uncond, 2.0, 0.0)
    assert torch.equal(found(blocks, blocks, weak=(weak, uncond)), twice)
    assert torch.equal(found(blocks, weak=(None,)), plain)
    for patch in (ZeroStar(), NormedDifference(1.0)):
        assert torch.equal(found(patch, uncond=None), cond)
    assert torch.equal(found(NormedGuidance(0.5), uncond=None), normed(cond, cond, 0.5))


class Patched:
    """Fakes a model with these patches."""

    def __init__(self, patches: tuple[Patch, ...]) -> None:
        self.patches = patches


# Skipped blocks


class Passing(nn.Module):
    """Fakes a block that changes nothing."""

    def forward(
        self, hidden_states: Tensor, encoder_hidden_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return encoder_hidden_states, hidden_states


@pytest.mark.parametrize("passed", [(0,), (1, 2), (3,), (0, 3), (5,)])
@pytest.mark.parametrize("kind", CHAINED)
def test_blocks_are_skipped_as_if_missing(kind: Kind, passed: tuple[int, ...]) -> None:
    """FLUX.1's fifth and sixth are single blocks."""
    module = made(kind, 3, blocks=4)
    one, text = inputs(module, 2, torch.float32)
    chains = [module.transformer_blocks, getattr(module, "single_transformer_blocks", [])]
    places = [(chain, number) for chain in chains for number in range(len(chain))]
    if passed[-1] >= len(places):
        with pytest.raises(InputError, match="cannot skip block 5: the range is 0 to 3"):
            in_stages(module, one, text, [], passed="5")
        return
    ours = in_stages(module, one, text, [], passed=", ".join(map(str, passed)))
    whole = stock_forward(module, one, text)
    for number in passed:
        chain, place = places[number]
        chain[place] = Passing()
    assert torch.equal(ours, stock_forward(module, one, text))
    assert (ours - whole).abs().max() > 1e-3


def test_a_residual_is_added_where_a_block_is_passed_over() -> None:
    """As in ComfyUI, it is added after the block in any case."""
    module = made("sd35", 3, blocks=4)
    one, text = inputs(module, 1, torch.float32)
    residual = torch.randn(1, 15, 32, generator=torch.Generator().manual_seed(5))

    def run(name: str, **given: Any) -> Any:
        return stage(name).computed(module, given)[0]

    fixed = run(
        "transformer_fixed", text=text, cells=one.x.shape[-2:], latents=(), placing="", before=0
    )
    tokens = run(
        "transformer_embed",
        step=one,
        text=text,
        fixed=fixed,
        context=run("transformer_context", text=text, kinds=()),
        pooled=run("transformer_pooled", text=text, reads_pooled=True),
    )
    passed = run(
        "transformer_blocks",
        features=tokens,
        fixed=fixed,
        first_block=1,
        last_block=1,
        passed_over="1",
        residuals_1=residual,
    )
    assert torch.equal(passed.hidden, tokens.hidden + residual)


@pytest.mark.parametrize("kind", CHAINED)
def test_skipped_blocks_are_not_counted(kind: Kind, folders: dict[Kind, Path]) -> None:
    wanted = region(folders[kind], kind, SkipLayerGuidance(MIDDLE, 2.0))
    program = plan_region(wanted, ONE)
    whole, less = (program.work[name] for name in ("positive-blocks", "positive-weakened1-blocks"))
    blocks = 4 if kind == "flux" else 3
    skipped = 2 if kind == "flux" else 1
    assert 0 < less.flops < whole.flops * (1 - 0.5 * skipped / blocks)
    assert 0 < less.weight_bytes < whole.weight_bytes
    assert less.output_bytes == whole.output_bytes


# Pictures


def latent(kind: Kind) -> Tensor:
    return torch.zeros(1, 4 if kind == "hunyuan_dit" else 16, 8, 8)


def region(folder: Path, kind: Kind, *patches: Patch, **changed: Any) -> Region:
    model, clip, _ = pipeline_recipes(folder)
    for patch in patches:
        model = model.with_patch(patch)
    return region_of(model, clip, kind, latent(kind), **{"cfg": GUIDANCE, **changed})


def stages_of(region: Region, suffix: str) -> list[str]:
    return [one.id for one in region.operations if one.id.endswith(suffix)]


@pytest.mark.parametrize("kind", CHAINED)
def test_a_step_of_skip_layer_guidance_is_made_of_three_predictions(
    kind: Kind, folders: dict[Kind, Path]
) -> None:
    """In one step to 0 the picture is the combined prediction, in model scale."""
    space = pipeline_recipes(folders[kind])[0].latent
    with local_engine() as engine:

        def picture(*patches: Patch, **changed: Any) -> Tensor:
            one = region(folders[kind], kind, *patches, steps=1, **changed)
            return space.normalised(sample(engine, one))

        cond, whole = picture(cfg=1.0), picture()
        weak = picture(SkipLayerNegative(MIDDLE), cfg=0.0, texts=PROMPTS[:1] * 2)
        found = picture(SkipLayerGuidance(MIDDLE, 2.5, 0.4))
        wanted = away_from(whole, cond, weak, 2.5, 0.4)
        alone = picture(SkipLayerGuidance(MIDDLE, 2.5), cfg=1.0)
        bound = 1e-5 * whole.abs().max()
        assert (weak - cond).abs().max() > 100 * bound
        assert (found - wanted).abs().max() <= bound
        assert (alone - (cond + 2.5 * (cond - weak))).abs().max() <= bound
        others = [picture(patch) for patch in (NormedGuidance(0.5), ZeroStar())]
        assert all((one - whole).abs().max() > 100 * bound for one in others)
        assert torch.equal(picture(ZeroStar(), cfg=1.0), cond)


def test_a_weakened_negative_takes_the_place_of_the_negative_side(
    folders: dict[Kind, Path],
) -> None:
    """At guidance 1, neither of them is computed."""
    whole = region(folders["sd35"], "sd35", SkipLayerNegative(MIDDLE))
    assert stages_of(whole, "-blocks") == ["negative-weakened-blocks", "positive-blocks"]
    part = region(folders["sd35"], "sd35", SkipLayerNegative(SkippedBlocks((1,), (), 0.0, 0.5)))
    assert set(stages_of(part, "-blocks")) == {
        "negative-weakened-blocks",
        "negative-blocks",
        "positive-blocks",
    }
    alone = region(folders["sd35"], "sd35", SkipLayerNegative(MIDDLE), cfg=1.0)
    assert stages_of(alone, "-blocks") == ["positive-blocks"]


def test_outside_of_its_window_nothing_is_computed_without_blocks(
    folders: dict[Kind, Path],
) -> None:
    """The window contains the noise levels between those of its two fractions."""
    start, end = 0.2, 0.6
    guidance = SkipLayerGuidance(SkippedBlocks((1,), (), start, end), 2.0)
    negative = SkipLayerNegative(SkippedBlocks((0,), (), start, end))
    wanted = region(folders["sd35"], "sd35", guidance, negative, steps=8)
    program = plan_region(wanted, ONE)
    table = table_of(wanted.begin.inputs["model"])
    levels = schedule("normal", table, 8)[:-1]
    high, low = (table.percent_to_sigma(share) for share in (start, end))
    inside = {number for number, level in enumerate(levels) if low <= level <= high}
    assert 0 < len(inside) < 8 and 0 not in inside
    for variant in program.variants:
        names = {one.id for one in variant.operations if one.stage == "transformer_blocks"}
        weak = {"positive-weakened1-blocks", "negative-weakened-blocks"}
        if set(variant.evaluations) <= inside:
            assert names == {"positive-blocks", *weak}
        else:
            assert not set(variant.evaluations) & inside
            assert names == {"positive-blocks", "negative-blocks"}


@pytest.mark.parametrize("kind", CHAINED)
def test_any_placement_gives_the_same_bits(
    kind: Kind, folders: dict[Kind, Path], costs: Path
) -> None:
    early = SkippedBlocks((1,), (), 0.0, 0.5)
    patches = SkipLayerGuidance(early, 2.0), SkipLayerGuidance(MIDDLE, 1.0), ZeroStar()
    wanted_region = region(folders[kind], kind, *patches)
    with local_engine(batching=False, cache=costs) as engine:
        wanted = sample(engine, wanted_region)
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        draw = random.Random(0)
        pins = {
            operation.id: (draw.choice(("cpu:0", "cpu:1")),)
            for operation in wanted_region.operations
            if operation.stage in COSTED
        }
        target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
        program = plan_region(wanted_region, target)
        assert torch.equal(engine.cluster.run(program, bare_context(engine)).samples, wanted)


def test_a_weakened_side_reads_the_controlnet_of_its_side(
    folders: dict[Kind, Path], tmp_path: Path
) -> None:
    draw_controlnet("sd35", 2).save_pretrained(tmp_path)
    model, clip, vae = pipeline_recipes(folders["sd35"])
    model = model.with_patch(SkipLayerGuidance(SkippedBlocks((1,), (), *ALWAYS), 2.0))
    image = Picture.of(torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(1)))
    use = ControlUse(controlnet_recipe(tmp_path), image, vae=vae)
    entry = ConditioningEntry(Prompt(clip, PROMPTS[0]), control=(use,))
    drawn_region = region_of_guider(Guider("basic", model, (entry,)), "sd35")
    by_id = {one.id: one for one in drawn_region.operations}
    assert len(stages_of(drawn_region, "-controlnet1")) == 1
    groups = [name for name in by_id if by_id[name].stage == "transformer_blocks"]
    strong = [by_id[name] for name in groups if "weakened" not in name]
    weak = [by_id[name] for name in groups if "weakened" in name]
    for one, other in zip(strong, weak, strict=True):
        for name in ("first_block", "last_block", "residuals_1"):
            assert one.inputs.get(name) == other.inputs.get(name)
        inside = one.inputs["first_block"] <= 1 <= one.inputs["last_block"]
        assert other.inputs["passed_over"] == ("1" if inside else "")
        assert one.inputs["passed_over"] == ""
    with local_engine() as engine:
        assert sample(engine, drawn_region).isfinite().all()


def region_of_guider(guider: Guider, kind: Kind) -> Region:
    begin = {"steps": 2, "seed": 7, "latent_image": {"samples": latent(kind)}}
    expansion = expand_guider("StepBegin", begin, guider)
    return bind(expansion.graph, expansion.outputs[0].node)


@pytest.mark.parametrize("kind", ["dual", "nested"])
def test_guiders_of_three_prompts_weaken_the_inner_side(
    kind: Any, folders: dict[Kind, Path]
) -> None:
    model, clip, _ = pipeline_recipes(folders["sd35"])
    sides = [(ConditioningEntry(Prompt(clip, text)),) for text in ("a", "b", "c")]
    model = model.with_patch(SkipLayerGuidance(MIDDLE, 2.0)).with_patch(SkipLayerNegative(MIDDLE))
    guider = Guider(kind, model, *sides, guidance=3.0, outer=2.0)
    names = stages_of(region_of_guider(guider, "sd35"), "-blocks")
    weakened = "positive" if kind == "nested" else "middle"
    assert {name for name in names if "weakened" in name} == {f"{weakened}-weakened1-blocks"}


# Nodes


def test_nodes_patch_a_model(folders: dict[Kind, Path]) -> None:
    model, _, _ = pipeline_recipes(folders["flux"])

    def patches(name: str, **inputs: Any) -> tuple[Patch, ...]:
        found: ModelRecipe = call(name, model=model, **inputs)
        return found.patches

    blocks = SkippedBlocks((7, 8, 9), (7, 8, 9), 0.01, 0.15)
    assert patches("SkipLayerGuidanceDiT") == (SkipLayerGuidance(blocks, 3.0, 0.0),)
    assert patches("SkipLayerGuidanceSD3", layers="9,7 7") == (
        SkipLayerGuidance(SkippedBlocks((7, 9), (), 0.01, 0.15), 3.0),
    )
    assert patches("SkipLayerGuidanceDiTSimple", single_layers="") == (
        SkipLayerNegative(SkippedBlocks((7, 8, 9), (), 0.0, 1.0)),
    )
    assert patches("CFGNorm") == (NormedGuidance(1.0),)
    assert patches("CFGNorm", strength=0.5, pre_cfg=True) == (NormedDifference(0.5),)
    assert patches("CFGZeroStar") == (ZeroStar(),)
    nothing: Mapping[str, Any] = {"double_layers": "", "single_layers": " "}
    assert patches("SkipLayerGuidanceDiT", **nothing) == ()
    assert patches("SkipLayerGuidanceDiTSimple", **nothing) == ()
    assert patches("SkipLayerGuidanceDiT", scale=0.0) == ()


@pytest.mark.parametrize("text", ["7-9", "a", "1.5", "-1", "7; 8"])
def test_layers_that_are_no_numbers_are_refused(text: str, folders: dict[Kind, Path]) -> None:
    model, _, _ = pipeline_recipes(folders["flux"])
    with pytest.raises(
        InputError, match="expected numbers of blocks, separated by commas: 7, 8, 9"
    ):
        call("SkipLayerGuidanceDiT", model=model, double_layers=text)
    assert block_numbers(" 9, 7,8,, 8") == (7, 8, 9)


@pytest.mark.parametrize(
    ("kind", "blocks", "line"),
    [
        ("sd35", ((1, 3), ()), "has double blocks 0 to 2, SkipLayerGuidance cannot skip 3"),
        ("flux", ((), (2, 5)), "has single blocks 0 to 1, SkipLayerGuidance cannot skip 2, 5"),
        ("sd35", ((), (1,)), "has double blocks only, so SkipLayerGuidance has nothing"),
        ("z_image", ((1,), (1,)), "has no double or single blocks, so SkipLayerGuidance"),
        ("hunyuan_dit", ((1,), ()), "has no double or single blocks, so SkipLayerGuidance"),
    ],
)
def test_blocks_that_a_model_has_not_are_named(
    kind: Kind, blocks: Any, line: str, folders: dict[Kind, Path]
) -> None:
    for patch in (
        SkipLayerGuidance(SkippedBlocks(*blocks, *ALWAYS), 2.0),
        SkipLayerNegative(SkippedBlocks(*blocks, *ALWAYS)),
    ):
        with pytest.raises(InputError, match=line) as refused:
            region(folders[kind], kind, patch)
        assert "\n" not in str(refused.value)


def test_a_region_drawn_by_hand_links_the_weakened_prediction(folders: dict[Kind, Path]) -> None:
    model, clip, _ = pipeline_recipes(folders["sd35"])
    model = model.with_patch(SkipLayerGuidance(MIDDLE, 2.0))
    text = (ConditioningEntry(Prompt(clip, PROMPTS[0])),)
    common, begin = {"model": model, "conditioning": text}, Link("begin", 0)
    nodes = {
        "begin": NodeCall(
            "StepBegin", {"model": model, "latent_image": {"samples": latent("sd35")}, "steps": 1}
        ),
        "embed": NodeCall("TransformerEmbed", {**common, "step": begin}),
        "blocks": NodeCall("TransformerBlocks", {**common, "features": Link("embed", 0)}),
        "head": NodeCall("TransformerHead", {"model": model, "features": Link("blocks", 0)}),
        "fewer": NodeCall(
            "TransformerBlocks", {**common, "features": Link("embed", 0), "passed_over": "1"}
        ),
        "weak": NodeCall("TransformerHead", {"model": model, "features": Link("fewer", 0)}),
        "guidance": NodeCall(
            "PatchedCFGCombine", {"step": begin, "model": model, "cond": Link("head", 0)}
        ),
        "end": NodeCall("StepEnd", {"step": begin, "prediction": Link("guidance", 0)}),
    }
    with local_engine(batching=False) as engine:
        with pytest.raises(InputError, match=r"node guidance .*, weakened_1: .* link one"):
            sample(engine, bind(Graph(nodes), "end"))
        nodes["guidance"] = NodeCall(
            "PatchedCFGCombine", {**nodes["guidance"].inputs, "weakened_1": Link("weak", 0)}
        )
        ours = sample(engine, bind(Graph(nodes), "end"))
        single = Guider("basic", model, text)
        begin_inputs = {"steps": 1, "seed": 0, "latent_image": {"samples": latent("sd35")}}
        expansion = expand_guider("StepBegin", begin_inputs, single)
        assert torch.equal(ours, sample(engine, bind(expansion.graph, "end")))
