"""Transformer families: stages equal diffusers' `forward`, pictures equal its pipelines', and two
devices equal one.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import FluxPipeline
from safetensors.torch import load_file, save_file
from transformers_made import (
    COSTED,
    EACH,
    KINDS,
    PROMPTS,
    STEPS,
    forward,
    in_stages,
    inputs,
    region,
    stock_picture,
)

from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import ConditioningEntry, Lora, Picture, Prompt, References, Sizes
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.models.costs.counts import Counts
from katz_graph.models.costs.stage_cost import stage_work
from katz_graph.models.families.shared.transformer_stack import stack_of
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import network_recipe, pipeline_recipes
from katz_graph.models.stages import Sized
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.sampling import table_of
from katz_graph.testing.random_models import Kind, draw_network, kinds, make_pipeline
from katz_graph.testing.requests import bare_context, bind, local_engine, sample
from katz_graph.testing.stock_pipelines import Asked
from katz_graph.testing.stock_pipelines import region as stock_region
from katz_graph.testing.worker_threads import WorkerThreads

PEFT = {  # a layer of the second block
    "sd35": "transformer_blocks.1.attn.to_v",
    "flux": "single_transformer_blocks.1.attn.to_v",
    "z_image": "layers.1.attention.to_v",
    "hunyuan_dit": "blocks.4.attn1.to_v",  # reads block 2's
    "qwen_image": "transformer_blocks.1.attn.to_v",
    "krea2": "transformer_blocks.1.attn.to_q",
    "klein": "transformer_blocks.1.attn.to_v",
    "qwen_image_21": "transformer_blocks.1.attn.to_v",
    "anima": "transformer_blocks.1.attn1.to_v",
}

LONG_PROMPTS = "a red circle above sand, " * 40, ""  # longer than some models read

torch.set_num_threads(1)


# Stages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_stages_match_forward(kind: Kind, batch: int, dtype: torch.dtype) -> None:
    module = draw_network(kind, 3, blocks=4).to(dtype)
    step, text = inputs(module, batch, dtype)
    wanted = forward(module, step, text)
    assert wanted.std() > 0.1
    last = len(stack_of(module).blocks(module)) - 1
    for cuts in ([], [0], [1, 2], [0, last - 1], [*range(last)]):
        assert torch.equal(in_stages(module, step, text, cuts), wanted)


def test_flux_rounds_timesteps_in_bfloat16_as_the_pipelines_do() -> None:
    """They divide a rounded timestep of up to 1000; a difference below 1 % changes a picture by 5 to
    13 % after 8 steps.
    """
    module = draw_network("flux", 3).to(torch.bfloat16)
    step, text = inputs(module, 1, torch.bfloat16)
    step = replace(step, timestep=torch.full((1,), 0.974, dtype=torch.float64))
    rounded = (step.timestep.float() * 1000).to(torch.bfloat16) / 1000
    wanted = forward(module, replace(step, timestep=rounded.double()), text)
    assert torch.equal(in_stages(module, step, text, []), wanted)
    assert not torch.equal(forward(module, step, text), wanted)


@pytest.mark.parametrize("kind", ["sd3", "flux", "hunyuan_dit"])
def test_a_latent_of_odd_sides_is_filled_up_from_its_other_side(kind: Kind) -> None:
    module = draw_network(kind, 3)
    step, text = inputs(module, 1, torch.float32)
    x = step.x[..., :5, :7]
    around = torch.cat([x, x[..., :1]], dim=-1)
    around = torch.cat([around, around[..., :1, :]], dim=-2)
    wanted = forward(module, replace(step, x=around, model_input=around), text)
    ours = in_stages(module, replace(step, x=x, model_input=x), text, [])
    assert torch.equal(ours, wanted[..., :5, :7])


def test_blocks_output_only_values_read_later() -> None:
    values = {
        "_class_name": kinds()["hunyuan_dit"].network,
        **kinds()["hunyuan_dit"].configuration(4),
    }
    work = [
        stage_work(values, "transformer_blocks", Sized(1, 8, 8, 77, 0, last)).output_bytes
        for last in range(8)
    ]
    hidden = 4 * 16 * 32  # bytes of 16 tokens
    assert [(one - work[-1]) / hidden for one in work] == [1, 2, 3, 3, 3, 2, 1, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 2])
def test_one_count_serves_all_sizes(kind: Kind, batch: int) -> None:
    values = {"_class_name": kinds()[kind].network, **kinds()[kind].configuration(3)}
    for name in (*COSTED, "transformer_context"):
        for height, width, tokens in ((8, 8, 77), (10, 6, 154), (16, 20, 231)):
            tokens -= tokens % 32 if kind == "z_image" else 0  # it counts rows of 32
            sizes = Sized(batch, height, width, tokens)
            wanted = stage_work(values, name, sizes)
            got = Counts().work(values, name, sizes)
            assert got.flops == wanted.flops > 0
            assert (got.weight_bytes, got.output_bytes) == (
                wanted.weight_bytes,
                wanted.output_bytes,
            )


def test_guidance_is_an_input_of_distilled_models() -> None:
    module = draw_network("flux", 3)
    step, text = inputs(module, 1, torch.float32)
    other = replace(text, guidance=torch.full((1,), 7.0))
    off = replace(text, guidance=None)
    made = [in_stages(module, step, one, []) for one in (text, other, off)]
    assert (made[0] - made[1]).abs().max() > 1e-3
    assert (made[0] - made[2]).abs().max() > 1e-3


@pytest.mark.parametrize("placing", ["offset", "index", "uxo"])
@pytest.mark.parametrize("sizes", [((6, 10),), ((4, 12), (8, 4), (6, 6))])
def test_references_are_tokens_behind_the_picture_s(
    placing: str, sizes: tuple[tuple[int, int], ...]
) -> None:
    module = draw_network("flux", 3, blocks=3)
    step, text = inputs(module, 2, torch.float32)
    draw = torch.Generator().manual_seed(1)
    seen = tuple(torch.randn(2, 16, *size, generator=draw) for size in sizes)
    ours = in_stages(module, step, text, [1], seen, placing)
    height, width = step.x.shape[-2:]
    ids = [FluxPipeline._prepare_latent_image_ids(2, height // 2, width // 2, "cpu", torch.float32)]
    down, across = {"uxo": (height, width)}.get(placing, (0, 0))
    for number, (high, wide) in enumerate(sizes, start=1):
        place = FluxPipeline._prepare_latent_image_ids(
            2, high // 2, wide // 2, "cpu", torch.float32
        )
        # ComfyUI's placing, in cells: right of or below earlier ones
        if placing == "index":
            place[:, 0] = number
        elif placing == "uxo":
            place[:, 1:] += torch.tensor([down // 2, across // 2])
            down, across = down + high, across + wide
        else:
            right = high + down > wide + across
            shift = (0, across) if right else (down, 0)
            place[:, 0], place[:, 1:] = 1, place[:, 1:] + torch.tensor(shift) // 2
            down, across = max(down, high + shift[0]), max(across, wide + shift[1])
        ids.append(place)
    tokens = [FluxPipeline._pack_latents(one, *one.shape) for one in (step.x, *seen)]
    whole = module(
        torch.cat(tokens, dim=1),
        text.hidden,
        text.pooled,
        step.timestep.float(),
        torch.cat(ids),
        torch.zeros(text.hidden.shape[1], 3),
        text.guidance,
    ).sample[:, : tokens[0].shape[1]]
    wanted = FluxPipeline._unpack_latents(whole, height * 8, width * 8, 8)
    assert torch.equal(ours, wanted)


@pytest.mark.parametrize("placings", [("offset", "offset"), ("offset", "index"), ("uxo", None)])
def test_references_of_each_side_are_its_own(
    placings: tuple[str, str | None], folders: dict[Kind, Path], costs: Path
) -> None:
    model, clip, _ = pipeline_recipes(folders["flux"])
    draw = torch.Generator().manual_seed(3)
    seen = Picture.of(torch.randn(1, 16, 8, 8, generator=draw))
    sides = [
        (
            ConditioningEntry(
                Prompt(clip, text),
                references=None if placing is None else References((seen, seen), placing),  # type: ignore[arg-type]
            ),
        )
        for text, placing in zip(PROMPTS, placings, strict=True)
    ]
    begin = {
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": 2,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(2, 16, 8, 8)},
        "model": model,
    }
    expansion = expand_sampling("StepBegin", begin, model, *sides, 3.0)
    wanted = bind(expansion.graph, expansion.outputs[0].node)
    made = []
    for batching in (False, True, None):
        with local_engine(batching=batching, cache=costs) as engine:
            made.append(sample(engine, wanted))
    for other in made[1:]:
        assert (other - made[0]).abs().max() <= 2e-5 * made[0].abs().max()


@pytest.mark.parametrize("kind", EACH)
def test_texts_of_other_lengths_share_no_call(
    kind: Kind, folders: dict[Kind, Path], costs: Path
) -> None:
    if kind == "hunyuan_dit":
        return  # its texts have one length
    texts = "a red circle " * 40, "blue"
    made = []
    for batching in (False, True, None):
        with local_engine(batching=batching, cache=costs) as engine:
            one = region(
                folders[kind],
                kind,
                torch.zeros(1, kinds()[kind].latent.channels, 8, 8),
                cfg=4.0,
                texts=texts,
            )
            made.append(sample(engine, one))
    for other in made[1:]:
        assert (other - made[0]).abs().max() <= 2e-5 * made[0].abs().max()


# Pictures


@pytest.mark.parametrize(
    "kind",
    [
        "sd3+t5",
        "sd35+t5",
        "flux",
        "schnell",
        "z_image",
        "hunyuan_dit",
        "hunyuan_dit11",
        "qwen_image",
        "krea2",
        "flux2",
        "klein",
        "qwen_image_21",
        "anima",
    ],
)
def test_a_picture_is_the_stock_pipeline_s(kind: str, tmp_path: Path) -> None:
    name: Kind = kind.partition("+")[0]
    make_pipeline(tmp_path, name, 5, with_t5="+" in kind)
    latent = torch.zeros(1, kinds()[name].latent.channels, 8, 12)
    asked = Asked(tmp_path, name, latent, STEPS)
    with local_engine() as engine:
        ours = sample(engine, stock_region(asked, 7, engine))
        _, _, vae = pipeline_recipes(tmp_path)
        picture = engine.decode_latent(vae, ours, bare_context(engine))
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(7))
    wanted = stock_picture(tmp_path, name, noise)
    assert (picture - wanted).abs().max() <= 1e-5
    assert wanted.std() > 0.05  # not one colour
    assert (stock_picture(tmp_path, name, noise, PROMPTS[::-1]) - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["hunyuan_dit", "hunyuan_dit11"])
def test_a_picture_under_the_pipeline_s_own_scheduler_is_its_own(
    kind: Kind, tmp_path: Path
) -> None:
    make_pipeline(tmp_path, kind, 5)
    latent, seed = torch.zeros(1, 4, 12, 8), torch.Generator().manual_seed(7)
    with local_engine() as engine:
        own = region(tmp_path, kind, latent, scheduler_class="DDPMScheduler", texts=LONG_PROMPTS)
        ours = sample(engine, own)
        picture = engine.decode_latent(pipeline_recipes(tmp_path)[2], ours, bare_context(engine))
    noise = torch.randn(latent.shape, generator=seed)
    wanted = stock_picture(tmp_path, kind, noise, LONG_PROMPTS, generator=seed)
    assert (picture - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", EACH)
def test_any_placement_gives_the_same_bits(
    kind: Kind, folders: dict[Kind, Path], costs: Path
) -> None:
    wanted_region = region(
        folders[kind], kind, torch.zeros(1, kinds()[kind].latent.channels, 8, 8), cfg=4.0
    )
    with local_engine(batching=False, cache=costs) as engine:
        wanted = sample(engine, wanted_region)
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        for seed in range(3):
            draw = random.Random(seed)
            pins = {
                operation.id: (draw.choice(("cpu:0", "cpu:1")),)
                for operation in wanted_region.operations
                if operation.stage in COSTED
            }
            target = Target(engine.cluster.devices, engine.cluster.links, pins, batching=False)
            program = plan_region(wanted_region, target)
            made = engine.cluster.run(program, bare_context(engine)).samples
            assert torch.equal(made, wanted), program.placement


@pytest.mark.parametrize("kind", EACH)
def test_both_sides_in_one_call_agree_with_each_alone(
    kind: Kind, folders: dict[Kind, Path], costs: Path
) -> None:
    same_length = ("a red circle", "a blue circle")
    wanted_region = region(
        folders[kind],
        kind,
        torch.zeros(2, kinds()[kind].latent.channels, 8, 8),
        cfg=4.0,
        texts=same_length,
    )
    made = []
    for batching in (False, True):
        with local_engine(batching=batching, cache=costs) as engine:
            made.append(sample(engine, wanted_region))
    assert (made[0] - made[1]).abs().max() <= 1e-5 * made[0].abs().max()


@pytest.mark.parametrize("kind", EACH)
def test_blocks_drawn_by_hand_in_two_groups_give_the_same_bits(
    kind: Kind, folders: dict[Kind, Path]
) -> None:
    space = kinds()[kind].latent
    whole = region(folders[kind], kind, torch.zeros(1, space.channels, 8, 8), cfg=1.0)
    begin = {name: value for name, value in whole.begin.inputs.items() if value is not None}
    # of an EmptyLatentImage
    begin["latent_image"] = {"samples": torch.zeros(1, 4, space.factor, space.factor)}
    embed = next(one for one in whole.operations if one.stage == "transformer_embed")
    text = embed.inputs["conditioning"]
    step, common = Link("begin", 0), {"model": begin["model"], "conditioning": text}
    nodes = {
        "begin": NodeCall("StepBegin", begin),
        "embed": NodeCall("TransformerEmbed", {**common, "step": step}),
        "one": NodeCall(
            "TransformerBlocks", {**common, "features": Link("embed", 0), "last_block": 0}
        ),
        "two": NodeCall(
            "TransformerBlocks", {**common, "features": Link("one", 0), "first_block": 1}
        ),
        "head": NodeCall("TransformerHead", {"model": begin["model"], "features": Link("two", 0)}),
        "end": NodeCall("StepEnd", {"step": step, "prediction": Link("head", 0)}),
    }
    with local_engine() as engine:
        assert torch.equal(sample(engine, bind(Graph(nodes), "end")), sample(engine, whole))


@pytest.mark.parametrize("kind", EACH)
def test_a_lora_in_peft_s_names_acts_as_its_weights_do(
    kind: Kind, folders: dict[Kind, Path], tmp_path: Path
) -> None:
    layer, folder = PEFT[kind], folders[kind]
    draw = torch.Generator().manual_seed(2)
    up, down = 4 * torch.randn(32, 3, generator=draw), torch.randn(3, 32, generator=draw)
    names = (f"transformer.{layer}.lora_{side}.weight" for side in "BA")
    save_file(dict(zip(names, (up, down), strict=True)), tmp_path / "lora.safetensors")
    merged = tmp_path / "merged"
    shutil.copytree(folder, merged)
    weights = merged / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    tensors[f"{layer}.weight"] += 0.5 * (up @ down)
    save_file(tensors, weights, {"format": "pt"})
    latent = torch.zeros(1, kinds()[kind].latent.channels, 8, 8)
    lora = Lora(file_identity(tmp_path / "lora.safetensors"), 0.5)
    with local_engine() as engine:
        plain = sample(engine, region(folder, kind, latent))
        ours = sample(engine, region(folder, kind, latent, loras=(lora,)))
        wanted = sample(engine, region(merged, kind, latent))
    assert (ours - wanted).abs().max() <= 1e-5 * (wanted.max() - wanted.min())
    assert (plain - wanted).abs().max() > 1e-2


@pytest.mark.parametrize("kind", ["sd35", "flux", "z_image"])
def test_an_empty_latent_is_neither_shifted_nor_scaled(
    kind: Kind, folders: dict[Kind, Path]
) -> None:
    """If a run starts with part of the latent, a latent of zeros equals one filled with the shift;
    other values differ.
    """
    shift = pipeline_recipes(folders[kind])[0].latent.shift
    with local_engine() as engine:
        empty, shifted, other = (
            sample(engine, region(folders[kind], kind, latent, denoise=0.5))
            for latent in (torch.full((1, 16, 8, 8), value) for value in (0.0, shift, 2 * shift))
        )
    assert shift and torch.equal(empty, shifted)
    assert (other - empty).abs().max() > 1e-3


@pytest.mark.parametrize("kind", EACH)
def test_an_empty_latent_of_four_channels_is_one_of_the_model_s(
    kind: Kind, folders: dict[Kind, Path]
) -> None:
    with local_engine() as engine:
        made = [
            sample(engine, region(folders[kind], kind, torch.zeros(1, channels, 8, 8)))
            for channels in (4, 16)
        ]
    assert torch.equal(*made)


def test_sizes_are_inputs_of_the_first_versions_only(tmp_path: Path) -> None:
    kinds: tuple[Kind, ...] = ("hunyuan_dit", "hunyuan_dit11")
    for kind in kinds:
        make_pipeline(tmp_path / kind, kind, 1)
    latent = torch.zeros(1, 4, 8, 12)
    given = Sizes(512, 768, target_height=64, target_width=96)
    with local_engine() as engine:
        for kind in kinds:
            model, clip, _ = pipeline_recipes(tmp_path / kind)
            made = []
            for sizes in (None, given):
                entry = (ConditioningEntry(Prompt(clip, "sand"), sizes=sizes),)
                begin = {"sampler_name": "euler", "scheduler": "normal", "steps": 2, "seed": 1}
                begin |= {"latent_image": {"samples": latent}, "model": model}
                expansion = expand_sampling("StepBegin", begin, model, entry, entry, 1.0)
                made.append(sample(engine, bind(expansion.graph, expansion.outputs[0].node)))
            assert torch.equal(*made) == (kind == "hunyuan_dit")


def test_a_transformer_alone_is_trained_as_its_version_was(folders: dict[Kind, Path]) -> None:
    model = network_recipe(folders["hunyuan_dit"] / "transformer")
    table = table_of(model)
    assert table.parametrisation == "v_prediction"
    assert table.sigma_max == pytest.approx(45.3836, abs=1e-3)  # betas up to 0.018
    assert model.latent.scale == 0.13025
