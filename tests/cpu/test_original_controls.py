"""ControlNets as their makers publish them give diffusers' modules, and the pictures of its
pipelines. The layouts are written here, by tables that share nothing with the loader's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers_made import GUIDANCE, PROMPTS, STEPS, guidance

from katz_graph.bench.random_transformers import Kind, make_controlnet, make_pipeline
from katz_graph.bench.requests import bare_context, bind, local_engine, sample
from katz_graph.bench.stock_pipelines import Asked, schedule, stock
from katz_graph.errors import InputError
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import controlnet_recipe, network_recipe, pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.recipe import ConditioningEntry, ControlNetRecipe, ControlUse, Picture, Prompt

SIZE = 64, 96  # of pictures
STRENGTH = 0.7
HEADS = {"attention_head_dim": 32, "num_attention_heads": 1}  # a width that its positions can have

torch.set_num_threads(1)


def pixels() -> Tensor:
    return torch.rand(1, *SIZE, 3, generator=torch.Generator().manual_seed(9))


def same(module: Any, wanted: Any) -> bool:
    mine, theirs = module.state_dict(), wanted.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(one, theirs[name]) for name, one in mine.items()
    )


def region(folder: Path, kind: Kind, control: ControlNetRecipe | None) -> Region:
    model, clip, vae = pipeline_recipes(folder)
    image = Picture.of(pixels())
    used = () if control is None else (ControlUse(control, image, STRENGTH, vae=vae),)
    begin = {
        "sampler_name": "euler",
        "scheduler": schedule(kind),
        "steps": STEPS,
        "seed": 7,
        "latent_image": {"samples": torch.zeros(1, 16, SIZE[0] // 8, SIZE[1] // 8)},
        "model": model,
    }
    sides = ((ConditioningEntry(Prompt(clip, text), control=used),) for text in PROMPTS)
    expansion = expand_sampling("StepBegin", begin, model, *sides, guidance(kind))
    return bind(expansion.graph, expansion.outputs[0].node)


def pictures(folder: Path, kind: Kind, control: ControlNetRecipe) -> tuple[Tensor, Tensor, Tensor]:
    """Returns our picture, the stock pipeline's, and ours without the ControlNet."""
    with local_engine() as engine:
        ours, plain = (
            engine.decode_latent(
                pipeline_recipes(folder)[2],
                sample(engine, region(folder, kind, one)),
                bare_context(engine),
            )
            for one in (control, None)
        )
    noise = torch.randn(1, 16, *(side // 8 for side in SIZE), generator=torch.manual_seed(7))
    asked = Asked(folder, kind, noise, STEPS, PROMPTS, GUIDANCE, pixels(), STRENGTH)
    return ours, stock(asked)(), plain


# XLabs' of FLUX.1


def xlabs(module: Any) -> dict[str, Tensor]:
    """Names a ControlNet's tensors as XLabs' repository does."""
    mine = dict(module.state_dict())
    made: dict[str, Tensor] = {}

    def move(original: str, *names: str) -> None:
        for end in ("weight", "bias"):
            if f"{names[0]}.{end}" in mine:
                made[f"{original}.{end}"] = torch.cat([mine.pop(f"{one}.{end}") for one in names])

    for number in range(module.config.num_layers):
        ours, theirs = f"transformer_blocks.{number}", f"double_blocks.{number}"
        for side, norm, ff, names, out, norms in (
            ("img", "norm1", "ff", ("to_q", "to_k", "to_v"), "to_out.0", ("norm_q", "norm_k")),
            (
                "txt",
                "norm1_context",
                "ff_context",
                ("add_q_proj", "add_k_proj", "add_v_proj"),
                "to_add_out",
                ("norm_added_q", "norm_added_k"),
            ),
        ):
            move(f"{theirs}.{side}_mod.lin", f"{ours}.{norm}.linear")
            move(f"{theirs}.{side}_attn.qkv", *(f"{ours}.attn.{one}" for one in names))
            move(f"{theirs}.{side}_attn.proj", f"{ours}.attn.{out}")
            move(f"{theirs}.{side}_mlp.0", f"{ours}.{ff}.net.0.proj")
            move(f"{theirs}.{side}_mlp.2", f"{ours}.{ff}.net.2")
            for norm_of, name in zip(("query", "key"), norms, strict=True):
                weight = mine.pop(f"{ours}.attn.{name}.weight")
                made[f"{theirs}.{side}_attn.norm.{norm_of}_norm.scale"] = weight
        move(f"controlnet_blocks.{number}", f"controlnet_blocks.{number}")
    for original, name in (
        ("time_in", "timestep"),
        ("vector_in", "text"),
        ("guidance_in", "guidance"),
    ):
        for layer, number in (("in_layer", 1), ("out_layer", 2)):
            move(f"{original}.{layer}", f"time_text_embed.{name}_embedder.linear_{number}")
    move("img_in", "x_embedder")
    move("txt_in", "context_embedder")
    move("pos_embed_input", "controlnet_x_embedder")
    move("input_hint_block.0", "input_hint_block.conv_in")
    for number in range(6):
        move(f"input_hint_block.{2 + 2 * number}", f"input_hint_block.blocks.{number}")
    move("input_hint_block.14", "input_hint_block.conv_out")
    assert not mine
    return made


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """Returns a pipeline's folder, the file of its ControlNet, and that as diffusers has it."""
    place = tmp_path_factory.mktemp("flux")
    positions = {"axes_dims_rope": [4, 14, 14]}
    make_pipeline(place, "flux", 1, blocks=5, **HEADS, **positions)
    reads = {"conditioning_embedding_channels": 16, "num_single_layers": 0, "patch_size": 2}
    module = make_controlnet("flux", 2, blocks=2, **reads, **HEADS, **positions)
    module.save_pretrained(place / "controlnet")
    save_file(xlabs(module), place / "flux-canny-controlnet-v3.safetensors")
    return place, place / "flux-canny-controlnet-v3.safetensors", module


def test_a_controlnet_in_xlabs_layout_is_diffusers_module(flux: tuple[Path, Path, Any]) -> None:
    _, file, module = flux
    part = controlnet_recipe(file).control_net
    values = json.loads(part.configuration or "")
    assert values == {name: module.config[name] for name in values}
    assert same(ModelStore().controlnet(part, "cpu", torch.float32), module)


def test_a_picture_with_a_controlnet_in_xlabs_layout_is_the_stock_pipeline_s(
    flux: tuple[Path, Path, Any],
) -> None:
    folder, file, _ = flux
    ours, wanted, plain = pictures(folder, "flux", controlnet_recipe(file))
    assert (ours - wanted).abs().max() <= 1e-5
    assert (ours - plain).abs().max() > 1e-2


def test_a_controlnet_in_xlabs_layout_is_no_model(flux: tuple[Path, Path, Any]) -> None:
    _, file, _ = flux
    with pytest.raises(InputError, match=r"this is a ControlNet, expected .* ControlNetLoader$"):
        network_recipe(file)


@pytest.mark.parametrize("lost", ["img_in.weight", "double_blocks.1.img_attn.qkv.weight"])
def test_a_file_in_xlabs_layout_that_lost_a_tensor_is_incomplete(
    lost: str, flux: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    tensors = xlabs(flux[2])
    del tensors[lost]
    save_file(tensors, tmp_path / "control.safetensors")
    with pytest.raises(InputError, match=r"control\.safetensors: .*(missing)"):
        part = controlnet_recipe(tmp_path / "control.safetensors").control_net
        ModelStore().controlnet(part, "cpu", torch.float32)
