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
from diffusers import AutoencoderKL, StableDiffusion3Pipeline
from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from katz_graph.bench.random_models import seeded
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
from katz_graph.latent_space import LatentSpace
from katz_graph.models.configuration import pooled_text_width
from katz_graph.models.costs.counts import Counts
from katz_graph.models.costs.stage_cost import stage_work
from katz_graph.models.family import check_text, text_types
from katz_graph.models.loading.convert import blank
from katz_graph.models.loading.convert import tensors as loaded_tensors
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import (
    clip_recipe,
    network_recipe,
    pipeline_recipes,
    vae_recipe,
)
from katz_graph.models.stages import stage
from katz_graph.patches import FreeU
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.sampling import table_of
from katz_graph.recipe import ClipRecipe, ConditioningEntry, Lora, ModelRecipe, Prompt

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
    return region_of(replace(model, loras=loras), clip, latent, guidance)


def region_of(
    model: ModelRecipe, clip: ClipRecipe, latent: Tensor, guidance: float = GUIDANCE
) -> Region:
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


def test_the_first_text_encoder_s_projection_is_not_used(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    for suffix, same in (("", True), ("_2", False)):
        weights = other / f"text_encoder{suffix}" / "model.safetensors"
        tensors = load_file(weights)
        tensors["text_projection.weight"] *= 2
        save_file(tensors, weights, {"format": "pt"})
        latent = torch.zeros(1, 16, 8, 8)
        with local_engine() as engine:
            made = [sample(engine, region(place, latent)) for place in (folder, other)]
        assert torch.equal(*made) == same


# Files


def original(blocks: int, second: int, width: int = 64, norm: int | None = 32) -> dict[str, Tensor]:
    """Makes the tensors of a small transformer in the original layout, those of the first blocks
    with a second attention; written from the published files' names and shapes.
    """
    draw = torch.Generator().manual_seed(blocks)
    found: dict[str, Tensor] = {"pos_embed": torch.randn(1, 144, width, generator=draw)}

    def layer(name: str, *shape: int) -> None:
        found[f"{name}.weight"] = torch.randn(shape, generator=draw)
        found[f"{name}.bias"] = torch.randn(shape[0], generator=draw)

    layer("x_embedder.proj", width, 16, 2, 2)
    for name, inputs in (("t_embedder", 256), ("y_embedder", 72)):
        layer(f"{name}.mlp.0", width, inputs)
        layer(f"{name}.mlp.2", width, width)
    layer("context_embedder", width, 96)
    layer("final_layer.linear", 64, width)
    layer("final_layer.adaLN_modulation.1", 2 * width, width)
    for number in range(blocks):
        for side, first in (("x_block", number < second), ("context_block", False)):
            read_only = side == "context_block" and number == blocks - 1
            place = f"joint_blocks.{number}.{side}"
            vectors = 9 if first else 2 if read_only else 6
            layer(f"{place}.adaLN_modulation.1", vectors * width, width)
            for attention in ("attn", "attn2")[: 2 if first else 1]:
                layer(f"{place}.{attention}.qkv", 3 * width, width)
                for one in "qk" if norm else "":
                    name = f"{place}.{attention}.ln_{one}.weight"
                    found[name] = torch.randn(norm or 0, generator=draw)
                if not read_only:
                    layer(f"{place}.{attention}.proj", width, width)
            if not read_only:
                layer(f"{place}.mlp.fc1", 4 * width, width)
                layer(f"{place}.mlp.fc2", width, 4 * width)
    return found


@pytest.mark.parametrize(("blocks", "second", "norm"), [(3, 0, None), (4, 2, 32)])
def test_a_file_in_the_original_layout_is_what_diffusers_makes_of_it(
    blocks: int, second: int, norm: int | None, tmp_path: Path
) -> None:
    tensors = original(blocks, second, norm=norm)
    save_file(tensors, tmp_path / "model.safetensors")
    network = network_recipe(tmp_path / "model.safetensors").network
    wanted = convert_sd3_transformer_checkpoint_to_diffusers(dict(tensors))
    module = blank(network)
    ours = loaded_tensors(network, module)
    assert ours.keys() == wanted.keys() == module.state_dict().keys()
    assert all(torch.equal(ours[name], tensor) for name, tensor in wanted.items())
    assert {name: value.shape for name, value in module.state_dict().items()} == {
        name: tensor.shape for name, tensor in wanted.items()
    }


def test_two_text_encoders_in_files_pool_as_the_folder_s_do(folder: Path) -> None:
    model, clip, _ = pipeline_recipes(folder)
    paths = [folder / f"text_encoder{suffix}" for suffix in ("_2", "")]
    own = clip_recipe(paths, text_types(encoders=2)["sd3"].text_pooling)
    assert [one.encoder for one in own.encoders] == [one.encoder for one in clip.encoders]
    assert pooled_text_width(own) == 32 + 40
    check_text(own, model)
    with pytest.raises(InputError, match="not the two text encoders of one model"):
        clip_recipe(paths)


def test_a_checkpoint_in_one_file_paints_what_its_parts_paint(tmp_path: Path) -> None:
    parts = {"unet": {name: 0.05 * value for name, value in original(3, 1).items()}}
    with seeded(1):
        for role, projection, sizes in (("clip_l", 0, (32, 2)), ("clip_g", 40, (64, 3))):
            config = CLIPTextConfig(
                hidden_size=sizes[0],
                num_hidden_layers=sizes[1],
                intermediate_size=64,
                num_attention_heads=1,
                vocab_size=49408,
                projection_dim=projection or sizes[0],
            )
            kind = CLIPTextModelWithProjection if projection else CLIPTextModel
            parts[role] = {
                name if name.startswith("text_") else f"text_model.{name}": value
                for name, value in kind(config).state_dict().items()
            }
        parts["vae"] = vae_of_16_channels().state_dict()
    prefixes = {
        "unet": "model.diffusion_model.",
        "vae": "first_stage_model.",
        "clip_l": "text_encoders.clip_l.transformer.",
        "clip_g": "text_encoders.clip_g.transformer.",
    }
    whole = tmp_path / "whole.safetensors"
    save_file(
        {
            prefixes[part] + name: value
            for part, found in parts.items()
            for name, value in found.items()
        },
        whole,
    )
    save_file(parts["unet"], tmp_path / "unet.safetensors")
    latent = torch.zeros(1, 16, 8, 8)
    model = network_recipe(tmp_path / "unet.safetensors")
    assert model.latent == LatentSpace(16, 8, 1.5305, 0.0609)
    with local_engine() as engine:
        ours = sample(engine, region(whole, latent))
        apart = sample(engine, region_of(model, pipeline_recipes(whole)[1], latent))
    assert torch.equal(ours, apart)
    assert apart.isfinite().all() and apart.std() > 0.1


def test_a_file_has_the_noise_levels_of_a_folder(folder: Path, tmp_path: Path) -> None:
    save_file(original(2, 1), tmp_path / "model.safetensors")
    alone = network_recipe(tmp_path / "model.safetensors"), network_recipe(folder / "transformer")
    wanted = table_of(pipeline_recipes(folder)[0])
    for model in alone:
        assert torch.equal(table_of(model).sigmas, wanted.sigmas)


def vae_of_16_channels() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32,) * 4,
        layers_per_block=1,
        latent_channels=16,
        use_quant_conv=False,
        use_post_quant_conv=False,
    ).eval()


def test_a_vae_of_16_channels_in_a_file_decodes_as_its_module(tmp_path: Path) -> None:
    vae = vae_of_16_channels()
    save_file(vae.state_dict(), tmp_path / "ae.safetensors")
    latent = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    with local_engine() as engine, torch.no_grad():
        recipe = vae_recipe(tmp_path / "ae.safetensors")
        ours = engine.decode_latent(recipe, latent, bare_context(engine))
        wanted = (vae.decode(latent).sample.movedim(1, -1) / 2 + 0.5).clamp(0, 1)
    assert torch.equal(ours, wanted)


# Bad input


def test_t5_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    make_pipeline(tmp_path, "sd3", 5)
    index = tmp_path / "model_index.json"
    parts = json.loads(index.read_text())
    index.write_text(json.dumps(parts | {"text_encoder_3": ["transformers", "T5EncoderModel"]}))
    with pytest.raises(InputError, match="text_encoder_3"):
        pipeline_recipes(tmp_path)


def test_t5_in_a_single_file_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "sd3.safetensors"
    whole = {f"model.diffusion_model.{name}": value for name, value in original(2, 1).items()}
    save_file(whole | {"text_encoders.t5xxl.transformer.shared.weight": torch.zeros(2)}, file)
    with pytest.raises(InputError, match=f"^{file}: holds T5, which is not read yet"):
        pipeline_recipes(file)


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
