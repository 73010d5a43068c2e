"""Stable Diffusion 3 and 3.5: stages against diffusers' `forward`, whole pictures against its
pipeline, and two devices against one.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusion3Pipeline
from safetensors.torch import load_file, save_file
from torch import Tensor

from katz_graph.bench.random_transformers import (
    Kind,
    make_pipeline,
    make_transformer,
    transformer_config,
)
from katz_graph.bench.requests import bare_context, bind, local_engine, sample
from katz_graph.bench.worker_threads import WorkerThreads
from katz_graph.errors import InputError
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.graph import Graph, Link, NodeCall
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.ir.values import Step, TextEncoding, Tokens
from katz_graph.models.costs.counts import Counts
from katz_graph.models.costs.stage_cost import stage_work
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import network_recipe, pipeline_recipes
from katz_graph.models.stages import stage
from katz_graph.patches import FreeU
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.recipe import ConditioningEntry, Lora, Prompt

KINDS: tuple[Kind, ...] = ("sd3", "sd35")
PROMPTS = "a red circle above sand", "grey, blurred"
STEPS, GUIDANCE = 4, 4.0
ABSENT = "text_encoder_3", "tokenizer_3", "image_encoder", "feature_extractor"
COSTED = ("transformer_embed", "transformer_blocks", "transformer_head")

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("sd35")
    make_pipeline(place, "sd35", 1)
    return place


def region(
    folder: Path, latent: Tensor, guidance: float = GUIDANCE, loras: tuple[Lora, ...] = ()
) -> Region:
    model, clip, _ = pipeline_recipes(folder)
    model = replace(model, loras=loras)
    begin = {
        "sampler_name": "euler",
        "scheduler": "normal",
        "steps": STEPS,
        "seed": 7,
        "latent_image": {"samples": latent},
        "model": model,
    }
    positive, negative = ((ConditioningEntry(Prompt(clip, text)),) for text in PROMPTS)
    expansion = expand_sampling("StepBegin", begin, model, positive, negative, guidance)
    return bind(expansion.graph, expansion.outputs[0].node)


# Stages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_stages_give_what_forward_gives(kind: Kind, batch: int, dtype: torch.dtype) -> None:
    module = make_transformer(kind, 3, blocks=4).to(dtype)
    draw = torch.Generator().manual_seed(4)
    x, hidden, pooled = (
        torch.randn(shape, generator=draw).to(dtype)
        for shape in (
            (batch, 16, 6, 10),
            (batch, 9, module.config.joint_attention_dim),
            (batch, module.config.pooled_projection_dim),
        )
    )
    step = Step.of(x.float(), x, 0.5, 437.5)
    wanted = module(x, hidden, pooled, step.timestep.float()).sample
    for cuts in ([], [0], [1, 2], [0, 1, 2]):
        assert torch.equal(in_stages(module, step, TextEncoding(hidden, pooled), cuts), wanted)


def in_stages(module: Any, step: Step, text: TextEncoding, cuts: list[int]) -> Tensor:
    """Runs the stages with the blocks cut behind those numbers. Returns the raw prediction."""

    def run(name: str, **given: Any) -> Any:
        return stage(name).computed(module, given)[0]

    tokens: Tokens = run(
        "transformer_embed",
        step=step,
        text=text,
        context=run("transformer_context", text=text),
        pooled=run("transformer_pooled", text=text),
    )
    first = 0
    for last in [*cuts, -1]:
        tokens = run("transformer_blocks", features=tokens, first_block=first, last_block=last)
        first = last + 1
    raw: Tensor = run("transformer_head", features=tokens, parametrisation="raw")
    return raw


def test_a_latent_of_odd_sides_is_filled_up_from_its_other_side() -> None:
    module = make_transformer("sd3", 3)
    draw = torch.Generator().manual_seed(4)
    x = torch.randn(1, 16, 5, 7, generator=draw)
    text = TextEncoding(
        torch.randn(1, 9, module.config.joint_attention_dim, generator=draw),
        torch.randn(1, module.config.pooled_projection_dim, generator=draw),
    )
    step = Step.of(x, x, 0.5, 500.0)
    around = torch.cat([x, x[..., :1]], dim=-1)
    around = torch.cat([around, around[..., :1, :]], dim=-2)
    wanted = module(around, text.hidden, text.pooled, step.timestep.float()).sample
    assert torch.equal(in_stages(module, step, text, []), wanted[..., :5, :7])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 2])
def test_one_count_serves_all_sizes(kind: Kind, batch: int) -> None:
    values = {"_class_name": "SD3Transformer2DModel", **transformer_config(kind)}
    for name in (*COSTED, "transformer_context"):
        for height, width, tokens in ((8, 8, 77), (10, 6, 154), (16, 20, 231)):
            sizes = batch, height, width, tokens
            wanted = stage_work(values, name, *sizes)
            got = Counts().work(values, name, *sizes)
            assert got.flops == wanted.flops > 0
            assert (got.weight_bytes, got.output_bytes) == (
                wanted.weight_bytes,
                wanted.output_bytes,
            )


# Pictures


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_the_stock_pipeline_s(kind: Kind, tmp_path: Path) -> None:
    make_pipeline(tmp_path, kind, 5)
    latent = torch.zeros(1, 16, 8, 12)
    with local_engine() as engine:
        wanted_region = region(tmp_path, latent)
        ours = sample(engine, wanted_region)
        _, _, vae = pipeline_recipes(tmp_path)
        picture = engine.decode_latent(vae, ours, bare_context(engine))
    absent = dict.fromkeys(ABSENT)
    stock = StableDiffusion3Pipeline.from_pretrained(tmp_path, **absent)
    stock.set_progress_bar_config(disable=True)
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(7))
    wanted = without_t5(stock, noise)
    assert (picture - wanted).abs().max() <= 1e-5
    assert wanted.std() > 0.05  # of more than one colour
    assert (without_t5(stock, noise, PROMPTS[::-1]) - wanted).abs().max() > 1e-2


def without_t5(stock: Any, noise: Tensor, prompts: tuple[str, str] = PROMPTS) -> Tensor:
    """Returns the picture [B, H, W, 3] of the stock pipeline for the text encoders' own rows."""
    embeds = []
    for prompt in prompts:
        hidden, pooled = stock._get_clip_prompt_embeds(prompt)
        second, second_pooled = stock._get_clip_prompt_embeds(prompt, clip_model_index=1)
        joined = torch.cat([hidden, second], dim=-1)
        missing = stock.transformer.config.joint_attention_dim - joined.shape[-1]
        embeds.append(
            (
                torch.nn.functional.pad(joined, (0, missing)),
                torch.cat([pooled, second_pooled], dim=-1),
            )
        )
    (positive, pooled), (negative, negative_pooled) = embeds
    made = stock(
        prompt_embeds=positive,
        pooled_prompt_embeds=pooled,
        negative_prompt_embeds=negative,
        negative_pooled_prompt_embeds=negative_pooled,
        latents=noise,
        height=noise.shape[-2] * 8,
        width=noise.shape[-1] * 8,
        num_inference_steps=STEPS,
        guidance_scale=GUIDANCE,
        output_type="pt",
    )
    picture: Tensor = made.images.movedim(1, -1)
    return picture


def test_any_placement_gives_the_same_bits(folder: Path, costs: Path) -> None:
    wanted_region = region(folder, torch.zeros(1, 16, 8, 8))
    with local_engine(batching=False, cache=costs) as engine:
        wanted = sample(engine, wanted_region)
    workers = [WorkerConfig(f"cpu:{number}") for number in range(2)]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        for seed in range(4):
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


def test_blocks_drawn_by_hand_in_two_groups_give_the_same_bits(folder: Path) -> None:
    whole = region(folder, torch.zeros(1, 16, 8, 8), guidance=1.0)
    model, clip, _ = pipeline_recipes(folder)
    text = (ConditioningEntry(Prompt(clip, PROMPTS[0])),)
    begin = {name: value for name, value in whole.begin.inputs.items() if value is not None}
    step, common = Link("begin", 0), {"model": model}
    nodes = {
        "begin": NodeCall("StepBegin", begin),
        "embed": NodeCall("TransformerEmbed", {**common, "conditioning": text, "step": step}),
        "one": NodeCall(
            "TransformerBlocks", {**common, "features": Link("embed", 0), "last_block": 0}
        ),
        "two": NodeCall(
            "TransformerBlocks", {**common, "features": Link("one", 0), "first_block": 1}
        ),
        "head": NodeCall("TransformerHead", {**common, "features": Link("two", 0)}),
        "end": NodeCall("StepEnd", {"step": step, "prediction": Link("head", 0)}),
    }
    with local_engine() as engine:
        assert torch.equal(sample(engine, bind(Graph(nodes), "end")), sample(engine, whole))


def test_a_lora_in_peft_s_names_acts_as_its_weights_do(folder: Path, tmp_path: Path) -> None:
    layer = "transformer_blocks.1.attn.to_v"
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
    latent = torch.zeros(1, 16, 8, 8)
    lora = Lora(file_identity(tmp_path / "lora.safetensors"), 0.5)
    with local_engine() as engine:
        plain = sample(engine, region(folder, latent))
        ours = sample(engine, region(folder, latent, loras=(lora,)))
        wanted = sample(engine, region(merged, latent))
    assert (ours - wanted).abs().max() <= 1e-5 * (wanted.max() - wanted.min())
    assert (plain - wanted).abs().max() > 1e-2


# Bad input


def test_t5_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    make_pipeline(tmp_path, "sd3", 5)
    index = tmp_path / "model_index.json"
    parts = json.loads(index.read_text())
    index.write_text(json.dumps(parts | {"text_encoder_3": ["transformers", "T5EncoderModel"]}))
    with pytest.raises(InputError, match="text_encoder_3"):
        pipeline_recipes(tmp_path)


def test_a_single_file_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "sd3.safetensors"
    name = "joint_blocks.0.context_block.attn.qkv.weight"
    save_file({f"model.diffusion_model.{name}": torch.zeros(4, 4)}, file)
    with pytest.raises(InputError, match=f"^{file}: this is a Stable Diffusion 3 transformer in a"):
        network_recipe(file)


def test_a_picture_larger_than_the_table_of_positions_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="208x64 pixels, the transformer takes at most 192x192"):
        region(folder, torch.zeros(1, 16, 8, 26))


def test_free_u_is_refused(folder: Path) -> None:
    model, clip, _ = pipeline_recipes(folder)
    patched = replace(model, patches=(FreeU(1, 1.1, 1.2, 0.9, 0.2),))
    text = (ConditioningEntry(Prompt(clip, "")),)
    begin = {"latent_image": {"samples": torch.zeros(1, 16, 8, 8)}}
    with pytest.raises(InputError, match="FreeU does not act on a transformer"):
        expand_sampling("StepBegin", begin, patched, text, text, 1.0)
