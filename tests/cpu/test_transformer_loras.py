"""LoRA files for transformers, in every naming of trainers, equal the LoRA in PEFT's names bit for
bit, fused rows and swapped halves included.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel
from diffusers.loaders.lora_conversion_utils import (
    _convert_fal_kontext_lora_to_diffusers,
    _convert_kohya_flux_lora_to_diffusers,
    _convert_non_diffusers_z_image_lora_to_diffusers,
    _convert_xlabs_flux_lora_to_diffusers,
)
from diffusers.loaders.single_file_utils import convert_sd3_transformer_checkpoint_to_diffusers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
)
from transformers_made import forward
from transformers_made import inputs as step_and_text

from katz_graph.adapters.encoders import text_name, text_parts
from katz_graph.adapters.fit import check_loras, fit
from katz_graph.adapters.lora import read_lora
from katz_graph.adapters.methods import Lora as LoraMethod
from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, Lora, ModelRecipe
from katz_graph.executor.weights.weight_set import WeightSets
from katz_graph.models.families.flux.family import FAMILY as FLUX
from katz_graph.models.families.sd3.stand_ins import transformer as original
from katz_graph.models.loading.component import component
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.prepare import fuse_projections, prepare
from katz_graph.testing.random_models import Kind, draw_network

Tensors = dict[str, Tensor]
EACH: tuple[Kind, ...] = (  # one per family
    "sd35",
    "flux",
    "z_image",
    "hunyuan_dit",
    "qwen_image",
    "krea2",
    "qwen_image_21",
    "klein",
    "anima",
)
RANK, STRENGTH = 3, 0.7
QKV, ADDED = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")
GATED = ("to_gate", "to_out.0")
LAYERS: Mapping[Kind, Mapping[str, tuple[str, ...]]] = {
    "sd35": {
        "joint_blocks.0.x_block.attn.qkv": tuple(f"transformer_blocks.0.attn.{x}" for x in QKV),
        "joint_blocks.1.x_block.attn2.qkv": tuple(f"transformer_blocks.1.attn2.{x}" for x in QKV),
        "joint_blocks.2.context_block.attn.qkv": tuple(
            f"transformer_blocks.2.attn.{x}" for x in ADDED
        ),
        "joint_blocks.0.context_block.attn.proj": ("transformer_blocks.0.attn.to_add_out",),
        "joint_blocks.1.x_block.mlp.fc1": ("transformer_blocks.1.ff.net.0.proj",),
        "joint_blocks.0.context_block.adaLN_modulation.1": (
            "transformer_blocks.0.norm1_context.linear",
        ),
        "joint_blocks.2.context_block.adaLN_modulation.1": (
            "transformer_blocks.2.norm1_context.linear",
        ),
        "x_embedder.proj": ("pos_embed.proj",),
        "y_embedder.mlp.0": ("time_text_embed.text_embedder.linear_1",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
    },
    "flux": {
        "double_blocks.0.img_attn.qkv": tuple(f"transformer_blocks.0.attn.{x}" for x in QKV),
        "double_blocks.2.txt_attn.qkv": tuple(f"transformer_blocks.2.attn.{x}" for x in ADDED),
        "double_blocks.1.txt_mlp.2": ("transformer_blocks.1.ff_context.net.2",),
        "double_blocks.1.img_mod.lin": ("transformer_blocks.1.norm1.linear",),
        "single_blocks.1.linear1": (
            *(f"single_transformer_blocks.1.attn.{x}" for x in QKV),
            "single_transformer_blocks.1.proj_mlp",
        ),
        "single_blocks.0.linear2": ("single_transformer_blocks.0.proj_out",),
        "guidance_in.in_layer": ("time_text_embed.guidance_embedder.linear_1",),
        "img_in": ("x_embedder",),
        "final_layer.linear": ("proj_out",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
    },
    "z_image": {
        "layers.1.attention.qkv": tuple(f"layers.1.attention.{x}" for x in QKV),
        "context_refiner.0.attention.qkv": tuple(f"context_refiner.0.attention.{x}" for x in QKV),
        "noise_refiner.0.attention.out": ("noise_refiner.0.attention.to_out.0",),
        "layers.0.feed_forward.w2": ("layers.0.feed_forward.w2",),
        "layers.2.adaLN_modulation.0": ("layers.2.adaLN_modulation.0",),
        "x_embedder": ("all_x_embedder.2-1",),
        "final_layer.adaLN_modulation.1": ("all_final_layer.2-1.adaLN_modulation.1",),
    },
    "hunyuan_dit": {
        "blocks.0.attn1.Wqkv": tuple(f"blocks.0.attn1.{x}" for x in QKV),
        "blocks.4.attn2.kv_proj": ("blocks.4.attn2.to_k", "blocks.4.attn2.to_v"),
        "blocks.1.attn2.q_proj": ("blocks.1.attn2.to_q",),
        "blocks.5.attn1.out_proj": ("blocks.5.attn1.to_out.0",),
        "blocks.3.mlp.fc1": ("blocks.3.ff.net.0.proj",),
        "blocks.2.default_modulation.1": ("blocks.2.norm1.linear",),
        "blocks.4.skip_linear": ("blocks.4.skip_linear",),
        "mlp_t5.2": ("text_embedder.linear_2",),
        "pooler.c_proj": ("time_extra_emb.pooler.c_proj",),
        "x_embedder.proj": ("pos_embed.proj",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
    },
    "qwen_image": {
        name: (name,)
        for name in (
            "transformer_blocks.0.img_mod.1",
            "transformer_blocks.2.attn.to_out.0",
            "transformer_blocks.1.txt_mlp.net.0.proj",
            *(f"transformer_blocks.0.attn.{layer}" for layer in (*QKV, *ADDED)),
            "img_in",
            "txt_in",
            "norm_out.linear",
            "proj_out",
            "time_text_embed.timestep_embedder.linear_1",
        )
    },
    "krea2": {
        **{
            f"blocks.0.attn.{layer}": (f"transformer_blocks.0.attn.{ours}",)
            for layer, ours in zip(("wq", "wk", "wv", "gate", "wo"), (*QKV, *GATED), strict=True)
        },
        "blocks.2.mlp.up": ("transformer_blocks.2.ff.up",),
        "txtfusion.refiner_blocks.0.attn.wk": ("text_fusion.refiner_blocks.0.attn.to_k",),
        "txtfusion.layerwise_blocks.0.mlp.down": ("text_fusion.layerwise_blocks.0.ff.down",),
        "txtfusion.projector": ("text_fusion.projector",),
        "first": ("img_in",),
        "tmlp.2": ("time_embed.linear_2",),
        "tproj.1": ("time_mod_proj",),
        "txtmlp.1": ("txt_in.linear_1",),
        "last.linear": ("final_layer.linear",),
    },
    "qwen_image_21": {
        "transformer_blocks.1.img_mlp.gate_up": (
            "transformer_blocks.1.img_mlp.gate_layer",
            "transformer_blocks.1.img_mlp.proj",
        )
    }
    | {
        name: (name,)
        for name in (
            "transformer_blocks.0.img_mlp.proj",
            "transformer_blocks.0.img_mlp.gate_layer",
            "transformer_blocks.2.img_mlp.out",
            *(f"transformer_blocks.0.attn.{layer}" for layer in (*QKV, "to_out.0")),
            "img_in",
            "txt_in.in_layer",
            "modulation.1",
            "norm_out.linear",
            "proj_out",
        )
    },
    "klein": {
        "double_blocks.0.img_attn.qkv": tuple(f"transformer_blocks.0.attn.{x}" for x in QKV),
        "double_blocks.2.txt_attn.qkv": tuple(f"transformer_blocks.2.attn.{x}" for x in ADDED),
        "double_blocks.1.img_mlp.0": ("transformer_blocks.1.ff.linear_in",),
        "double_blocks.1.txt_mlp.2": ("transformer_blocks.1.ff_context.linear_out",),
        "single_blocks.1.linear1": ("single_transformer_blocks.1.attn.to_qkv_mlp_proj",),
        "single_blocks.0.linear2": ("single_transformer_blocks.0.attn.to_out",),
        "double_stream_modulation_img.lin": ("double_stream_modulation_img.linear",),
        "single_stream_modulation.lin": ("single_stream_modulation.linear",),
        "time_in.out_layer": ("time_guidance_embed.timestep_embedder.linear_2",),
        "txt_in": ("context_embedder",),
        "final_layer.linear": ("proj_out",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
    },
    "anima": {
        **{
            f"blocks.0.{attention}.{layer}": (f"transformer_blocks.0.{ours}.{name}",)
            for attention, ours in (("self_attn", "attn1"), ("cross_attn", "attn2"))
            for layer, name in zip(
                ("q_proj", "k_proj", "v_proj", "output_proj"), (*QKV, "to_out.0"), strict=True
            )
        },
        "blocks.1.adaln_modulation_self_attn.1": ("transformer_blocks.1.norm1.linear_1",),
        "blocks.1.adaln_modulation_cross_attn.2": ("transformer_blocks.1.norm2.linear_2",),
        "blocks.2.adaln_modulation_mlp.2": ("transformer_blocks.2.norm3.linear_2",),
        "blocks.2.mlp.layer1": ("transformer_blocks.2.ff.net.0.proj",),
        "blocks.2.mlp.layer2": ("transformer_blocks.2.ff.net.2",),
        "x_embedder.proj.1": ("patch_embed.proj",),
        "t_embedder.1.linear_2": ("time_embed.t_embedder.linear_2",),
        "final_layer.adaln_modulation.1": ("norm_out.linear_1",),
        "final_layer.linear": ("proj_out",),
        **{
            f"llm_adapter.{layer}": (f"llm_adapter.{layer}",)
            for layer in ("blocks.0.self_attn.q_proj", "blocks.1.cross_attn.o_proj", "out_proj")
        },
    },
}
"""Maps original layer names of small transformers to diffusers'."""
SWAPPED = {
    "sd35": ("joint_blocks.2.context_block.adaLN_modulation.1", "final_layer.adaLN_modulation.1"),
    "flux": ("final_layer.adaLN_modulation.1",),
    "z_image": (),
    "hunyuan_dit": ("final_layer.adaLN_modulation.1",),
    "qwen_image": (),
    "krea2": (),
    "qwen_image_21": (),
    "klein": ("final_layer.adaLN_modulation.1",),
    "anima": (),
}

torch.set_num_threads(1)


def dotted(prefix: str, ends: tuple[str, str]) -> Callable[[str], tuple[str, ...]]:
    """Names a layer's factors and alpha by its path."""
    return lambda layer: tuple(f"{prefix}{layer}.{end}" for end in (*ends, "alpha"))


def flat(prefix: str) -> Callable[[str], tuple[str, ...]]:
    """Names a layer's factors with underscores for dots."""
    ends = "lora_down.weight", "lora_up.weight", "alpha"
    return lambda layer: tuple(f"{prefix}{layer.replace('.', '_')}.{end}" for end in ends)


PEFT, KOHYA = ("lora_A.weight", "lora_B.weight"), ("lora_down.weight", "lora_up.weight")
BY_MODULES = {
    "PEFT": dotted("base_model.model.", PEFT),
    "ai-toolkit": dotted("diffusion_model.", PEFT),
    "an adapter with a name": dotted(
        "transformer.", ("lora_A.default.weight", "lora_B.default.weight")
    ),
    "old diffusers": dotted("transformer.", ("lora.down.weight", "lora.up.weight")),
    "OneTrainer": flat("lora_transformer_"),
    "SimpleTuner": flat("lycoris_"),
    "kohya's, by modules": flat("lora_unet_"),
}
BY_ORIGINALS = {
    "kohya": flat("lora_unet_"),
    "ComfyUI": dotted("diffusion_model.", PEFT),
    "ComfyUI, down and up": dotted("diffusion_model.", KOHYA),
    "fal": dotted("base_model.model.", PEFT),
    "bare": dotted("", PEFT),
    "bare, down and up": dotted("", KOHYA),
    "bare, an adapter with a name": dotted("", ("lora_A.default.weight", "lora_B.default.weight")),
    "SimpleTuner, originals": flat("lycoris_"),
}


def swapped(tensor: Tensor) -> Tensor:
    return torch.cat(tensor.chunk(2)[::-1])


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def factors(module: nn.Module, kind: Kind) -> dict[str, tuple[Tensor, list[Tensor], Tensor]]:
    """Draws a LoRA. Maps each original layer to down, a list of ups (one per module layer), and
    alpha.
    """
    found = {}
    for seed, (layer, names) in enumerate(LAYERS[kind].items()):
        shapes = [module.get_parameter(f"{name}.weight").shape for name in names]
        ones = [1] * (len(shapes[0]) - 2)
        ups = [random(shape[0], RANK, *ones, seed=seed + 50) for shape in shapes]
        found[layer] = random(RANK, *shapes[0][1:], seed=seed), ups, torch.tensor(1.0 + seed)
    return found


def in_peft_s_names(module: nn.Module, kind: Kind) -> Tensors:
    return by_modules(module, kind, dotted("transformer.", PEFT))


def by_modules(module: nn.Module, kind: Kind, naming: Callable[[str], tuple[str, ...]]) -> Tensors:
    return {
        key: value.clone()
        for layer, (down, ups, alpha) in factors(module, kind).items()
        for name, up in zip(LAYERS[kind][layer], ups, strict=True)
        for key, value in zip(naming(name), (down, up, alpha), strict=True)
    }


def by_originals(
    module: nn.Module, kind: Kind, naming: Callable[[str], tuple[str, ...]]
) -> Tensors:
    tensors: Tensors = {}
    for layer, (down, ups, alpha) in factors(module, kind).items():
        up = torch.cat(ups)
        up = swapped(up) if layer in SWAPPED[kind] else up
        tensors |= dict(zip(naming(layer), (down, up, alpha), strict=True))
    return tensors


def saved(path: Path, tensors: Mapping[str, Tensor]) -> Lora:
    save_file({name: value.clone().contiguous() for name, value in tensors.items()}, path)
    return Lora(file_identity(path), STRENGTH)


def weights(module: nn.Module) -> Tensors:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def merged(module: nn.Module, path: Path, tensors: Mapping[str, Tensor]) -> Tensors:
    """Returns the weights after a LoRA changed them, and removes it."""
    sets, before = WeightSets(module), weights(module)
    sets.use((saved(path / "lora.safetensors", tensors),))
    after = weights(module)
    sets.use(())
    restored = weights(module)
    assert all(same_bytes(restored[name], value) for name, value in before.items())
    return {name: value for name, value in after.items() if not torch.equal(value, before[name])}


def same_bytes(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def assert_equal(ours: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    assert ours.keys() == wanted.keys() and ours
    assert all(torch.equal(value, wanted[name]) for name, value in ours.items())


@pytest.fixture(scope="module", params=EACH)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def module(kind: Kind) -> nn.Module:
    made: nn.Module = draw_network(kind, 1)
    return made


# Namings


@pytest.mark.parametrize("naming", [*BY_MODULES, *BY_ORIGINALS])
def test_every_naming_is_the_lora_in_peft_s_names(
    naming: str, kind: Kind, module: nn.Module, tmp_path: Path
) -> None:
    wanted = merged(module, tmp_path, in_peft_s_names(module, kind))
    assert wanted.keys() == {f"{name}.weight" for one in LAYERS[kind].values() for name in one}
    tensors = (
        by_modules(module, kind, BY_MODULES[naming])
        if naming in BY_MODULES
        else by_originals(module, kind, BY_ORIGINALS[naming])
    )
    assert_equal(merged(module, tmp_path, tensors), wanted)


def test_the_lora_in_peft_s_names_is_its_product(
    kind: Kind, module: nn.Module, tmp_path: Path
) -> None:
    ours, before = merged(module, tmp_path, in_peft_s_names(module, kind)), weights(module)
    for layer, (down, ups, alpha) in factors(module, kind).items():
        for name, up in zip(LAYERS[kind][layer], ups, strict=True):
            product = (up.flatten(1) @ down.flatten(1)).view(ours[f"{name}.weight"].shape)
            wanted = before[f"{name}.weight"] + STRENGTH * alpha / RANK * product
            error = (ours[f"{name}.weight"] - wanted).abs().max()
            assert error <= 1e-6 * (wanted.max() - wanted.min())


@pytest.mark.parametrize("kind", EACH)
def test_fused_projections_are_patched_and_restored(kind: Kind, tmp_path: Path) -> None:
    """On GPUs, weights of several layers share a storage."""
    plain, fused = draw_network(kind, 1), draw_network(kind, 1)
    prepare(fused)
    fuse_projections(fused)
    lora = saved(tmp_path / "lora.safetensors", in_peft_s_names(plain, kind))
    before = call(fused)
    sets = [WeightSets(module) for module in (plain, fused)]
    for one in sets:
        one.use((lora,))
    assert_equal(weights(fused), weights(plain))
    expected = call(plain)
    span = expected.max() - expected.min()
    assert (call(fused) - expected).abs().max() <= 1e-5 * span
    assert (before - expected).abs().max() > 0.01 * span
    sets[1].use(())
    assert torch.equal(call(fused), before)


@torch.no_grad()
def call(module: Any) -> Tensor:
    made: Tensor = forward(module, *step_and_text(module, 2, torch.float32))
    return made


def test_a_file_without_alpha_has_that_of_its_rank(
    kind: Kind, module: nn.Module, tmp_path: Path
) -> None:
    def with_alpha(value: float | None) -> Tensors:
        tensors = by_originals(module, kind, BY_ORIGINALS["kohya"])
        alphas = [name for name in tensors if name.endswith(".alpha")]
        bare = {name: tensor for name, tensor in tensors.items() if name not in alphas}
        return bare if value is None else bare | dict.fromkeys(alphas, torch.tensor(value))

    plain, same, other = (
        merged(module, tmp_path, with_alpha(value)) for value in (None, float(RANK), 1.0)
    )
    assert_equal(plain, same)
    assert not any(torch.equal(value, other[name]) for name, value in plain.items())


# Against diffusers' converters


def test_kohya_s_names_of_flux_match_diffusers(tmp_path: Path) -> None:
    """diffusers merges alpha (exact for half the rank), ignores the last layer's, and supports one
    width of `linear1`.
    """
    module = draw_network("flux", 1)
    tensors = by_originals(module, "flux", BY_ORIGINALS["kohya"])
    for name in tensors:
        if name.endswith(".alpha"):
            tensors[name] = torch.tensor(RANK if "final_layer" in name else RANK / 2)
    remaining = {name: value for name, value in tensors.items() if "linear1" not in name}
    converted = _convert_kohya_flux_lora_to_diffusers(dict(remaining))
    assert len(converted) == 2 * (len(LAYERS["flux"]) - 1 + 4)
    assert_equal(merged(module, tmp_path, remaining), merged(module, tmp_path, converted))


@pytest.mark.parametrize("prefix", ["", "diffusion_model."])
def test_xlabs_names_match_diffusers(prefix: str, tmp_path: Path) -> None:
    """XLabs' single blocks have a LoRA on the first three of `linear1`'s four parts."""
    module, sizes = draw_network("flux", 1), {"qkv": (96, 32), "proj": (32, 32)}
    tensors = {
        f"{prefix}{blocks}.{number}.processor.{layer}_lora{end}.{side}.weight": random(
            *((RANK, inputs) if side == "down" else (rows, RANK)), seed=seed
        )
        for seed, (blocks, number, layer, end) in enumerate(
            [
                ("double_blocks", 0, "qkv", 1),
                ("double_blocks", 0, "qkv", 2),
                ("double_blocks", 1, "proj", 1),
                ("double_blocks", 2, "proj", 2),
                ("single_blocks", 1, "qkv", ""),
                ("single_blocks", 0, "proj", ""),
            ]
        )
        for rows, inputs in [
            (32, 160) if (blocks, layer) == ("single_blocks", "proj") else sizes[layer]
        ]
        for side in ("down", "up")
    }
    converted = _convert_xlabs_flux_lora_to_diffusers(dict(tensors))
    wanted = merged(module, tmp_path, converted)
    assert len(wanted) == 3 + 3 + 1 + 1 + 3 + 1
    assert_equal(merged(module, tmp_path, tensors), wanted)


def test_z_image_in_kohya_s_names_matches_diffusers(tmp_path: Path) -> None:
    module = draw_network("z_image", 1)
    tensors = {
        name: torch.tensor(RANK / 2) if name.endswith(".alpha") else value
        for name, value in by_originals(module, "z_image", BY_ORIGINALS["kohya"]).items()
        # it does not rename these
        if "x_embedder" not in name and "final_layer" not in name
    }
    converted = _convert_non_diffusers_z_image_lora_to_diffusers(dict(tensors))
    assert_equal(merged(module, tmp_path, tensors), merged(module, tmp_path, converted))


WIDTH = 3072  # of FLUX.1
DOUBLE = {
    f"{side}_{layer}": sizes
    for side in ("img", "txt")
    for layer, sizes in {
        "mod.lin": (6, 1),
        "attn.qkv": (3, 1),
        "attn.proj": (1, 1),
        "mlp.0": (4, 1),
        "mlp.2": (1, 4),
    }.items()
}
SINGLE = {"modulation.lin": (3, 1), "linear1": (7, 1), "linear2": (1, 5)}


def test_fal_s_files_of_the_whole_flux_match_diffusers(tmp_path: Path) -> None:
    """Layers have their real width, as rank-1 factors."""
    sizes = {
        f"{blocks}.{number}.{layer}": (rows * WIDTH, inputs * WIDTH)
        for blocks, count, table in (("double_blocks", 19, DOUBLE), ("single_blocks", 38, SINGLE))
        for number in range(count)
        for layer, (rows, inputs) in table.items()
    } | {"final_layer.linear": (64, WIDTH)}
    tensors = {}
    for seed, (layer, (rows, inputs)) in enumerate(sizes.items()):
        name = f"base_model.model.{layer}.lora"
        tensors[f"{name}_A.weight"] = random(1, inputs, seed=seed)
        tensors[f"{name}_B.weight"] = random(rows, 1, seed=seed + 1000)
    with torch.device("meta"):
        whole = FluxTransformer2DModel(guidance_embeds=True)
    used = saved(tmp_path / "lora.safetensors", tensors)
    ours = fit(read_lora(used.file), FLUX, weights(whole))
    wanted = _convert_fal_kontext_lora_to_diffusers(dict(tensors))
    assert len(wanted) == 2 * len(ours) == 2 * (19 * (10 + 4) + 38 * 6 + 1)
    for name, method in ours.items():
        assert isinstance(method, LoraMethod)
        layer = f"transformer.{name.removesuffix('.weight')}.lora"
        assert torch.equal(method.product.right, wanted[f"{layer}_A.weight"])
        assert torch.equal(method.product.left, wanted[f"{layer}_B.weight"])


@pytest.mark.parametrize("kind", ["sd3", "sd35"], indirect=True)
def test_sd3_s_layers_are_those_of_diffusers_converter_of_checkpoints(
    kind: Kind, module: nn.Module, tmp_path: Path
) -> None:
    """The `up` factors replace a checkpoint's weights; an added column holds the number of each
    row's layer.
    """
    layout = original(3, 2 if kind == "sd35" else 0, width=32, norm=16 if kind == "sd35" else None)
    named = [name for name, value in layout.items() if value.ndim > 1 and name.endswith(".weight")]
    rows = {name: random(len(layout[name]), RANK, seed=seed) for seed, name in enumerate(named)}
    numbered = {
        name: torch.cat([up, torch.full((len(up), 1), float(number))], 1)
        for number, (name, up) in enumerate(rows.items())
    }
    converted = convert_sd3_transformer_checkpoint_to_diffusers(layout | numbered)
    wanted: Tensors = {}
    ours: Tensors = {}
    for name, weight in module.named_parameters():
        if weight.ndim < 2:
            continue
        up, number = converted[name][:, :-1], int(converted[name][0, -1])
        down = random(RANK, *weight.shape[1:], seed=number)
        layer = name.removesuffix(".weight")
        up = up.reshape(*up.shape, *[1] * (weight.ndim - 2))
        wanted |= dict(zip(dotted("transformer.", PEFT)(layer), (down, up), strict=False))
        ours |= dict(
            zip(
                flat("lora_unet_")(named[number].removesuffix(".weight")),
                (down, rows[named[number]].reshape(-1, *up.shape[1:])),
                strict=False,
            )
        )
    assert len(ours) == 2 * len(named)
    assert_equal(merged(module, tmp_path, ours), merged(module, tmp_path, wanted))


# Other methods over fused rows


def loha(rows: int, inputs: int) -> Tensors:
    shapes = {"w1_a": (rows, 2), "w1_b": (2, inputs), "w2_a": (rows, 2), "w2_b": (2, inputs)}
    return {f"hada_{end}": random(*shape, seed=len(end)) for end, shape in shapes.items()}


def lokr(rows: int, inputs: int) -> Tensors:
    return {
        "lokr_w1": random(4, 4, seed=1),
        "lokr_w2_a": random(rows // 4, 2, seed=2),
        "lokr_w2_b": random(2, inputs // 4, seed=3),
    }


def difference(rows: int, inputs: int) -> Tensors:
    return {"diff": random(rows, inputs, seed=4), "diff_b": random(rows, seed=5)}


def lora(rows: int, inputs: int) -> Tensors:
    return {
        "lora_down.weight": random(2, inputs, seed=6),
        "lora_up.weight": random(rows, 2, seed=7),
    }


def dora(rows: int, inputs: int) -> Tensors:
    return lora(rows, inputs) | {"dora_scale": random(rows, 1, seed=8).abs()}


@pytest.mark.parametrize("make", [loha, lokr, difference, dora], ids=lambda make: make.__name__)
@pytest.mark.parametrize("layer", ["single_blocks.1.linear1", "final_layer.adaLN_modulation.1"])
def test_other_methods_change_fused_rows_as_they_change_the_whole(
    layer: str, make: Callable[[int, int], Tensors], tmp_path: Path
) -> None:
    """The reference changes the original code's weight as a whole, then splits it."""
    module, names = draw_network("flux", 1), LAYERS["flux"][layer]
    parameters = ("weight", "bias") if make is difference else ("weight",)
    originals = {}
    for one in parameters:
        joined = torch.cat([module.get_parameter(f"{name}.{one}") for name in names])
        originals[one] = swapped(joined) if layer in SWAPPED["flux"] else joined
    tensors = {
        f"lora_unet_{layer.replace('.', '_')}.{end}": value
        for end, value in make(*originals["weight"].shape).items()
    }
    ours = merged(module, tmp_path, tensors)
    methods = read_lora(file_identity(tmp_path / "lora.safetensors")).parts["network"]
    for one, joined in originals.items():
        methods[f"{layer.replace('.', '_')}.{one}"].add_to(joined, STRENGTH)
        whole = swapped(joined) if layer in SWAPPED["flux"] else joined
        sizes = [len(module.get_parameter(f"{name}.{one}")) for name in names]
        for name, rows in zip(names, torch.split(whole, sizes), strict=True):
            assert torch.allclose(ours[f"{name}.{one}"], rows, rtol=0, atol=1e-6)
    assert len(ours) == len(names) * len(parameters)


def test_rows_of_a_lokr_come_in_pieces(tmp_path: Path) -> None:
    used = saved(
        tmp_path / "lora.safetensors",
        {
            f"diffusion_model.final_layer.adaLN_modulation.1.{end}": value
            for end, value in lokr(64, 32).items()
        },
    )
    module = draw_network("flux", 1)
    method = fit(read_lora(used.file), FLUX, weights(module))["norm_out.linear.weight"]
    whole, pieces = torch.zeros(64, 32), torch.zeros(64, 32)
    method.add_to(whole, 1.0)
    for first in range(0, 64, 24):
        method.add_to(pieces[first : first + 24], 1.0, slice(first, min(first + 24, 64)))
    assert torch.equal(whole, pieces) and method.shape == [64, 32]


def test_a_dora_by_inputs_over_fused_rows_is_refused(tmp_path: Path) -> None:
    tensors = lora(96, 32) | {"dora_scale": random(1, 32, seed=8).abs()}
    refused(
        "flux",
        tmp_path,
        {
            f"diffusion_model.double_blocks.0.img_attn.qkv.{end}": one
            for end, one in tensors.items()
        },
        r"img_attn\.qkv is DoRA over inputs, which needs all rows of a fused weight",
    )


# Text encoders


def text_encoders() -> dict[str, nn.Module]:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    return {
        "clip": CLIPTextModel(CLIPTextConfig(**sizes, vocab_size=16, num_hidden_layers=1)),
        "t5": T5EncoderModel(
            T5Config(vocab_size=16, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_heads=2)
        ),
        "qwen3": Qwen3Model(Qwen3Config(**sizes, vocab_size=16, num_hidden_layers=1)),
    }


CLIPS = {
    "clip_l": {"hidden_act": "quick_gelu"},
    "clip_h": {"hidden_act": "gelu"},
    "clip_g": {"hidden_act": "gelu", "architectures": ["CLIPTextModelWithProjection"]},
}
OTHERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "qwen3": "Qwen3Model"}
LAYER = {
    "clip": "text_model.encoder.layers.0.mlp.fc1",
    "t5": "encoder.block.0.layer.0.SelfAttention.q",
    "mt5": "encoder.block.0.layer.0.SelfAttention.q",
    "qwen3": "model.layers.0.self_attn.q_proj",
}


def encoder_part(kind: str) -> Component:
    values = CLIPS.get(kind) or {"architectures": [OTHERS[kind]], "hidden_size": 2560}
    return Component("", (), json.dumps(values))


@pytest.mark.defect(5)
@pytest.mark.parametrize(
    ("prefix", "model", "number"),
    # the model's text encoders, and the number of the named one
    [
        ("lora_te_", ["clip_l"], 0),
        ("lora_te1_", ["clip_l", "clip_g", "t5"], 0),
        ("text_encoder.", ["clip_l", "t5"], 0),
        ("text_encoders.clip_l.transformer.", ["clip_l"], 0),
        ("clip_l.", ["clip_l", "t5"], 0),
        ("lora_te2_", ["clip_l", "clip_g"], 1),
        ("lora_te2_", ["clip_g"], 0),
        ("lora_te2_", ["clip_l"], None),
        ("lora_te2_", ["clip_l", "t5"], None),
        ("lora_te_", ["clip_g"], 0),
        ("lora_te1.", ["clip_g"], 0),
        ("text_encoder_2.", ["clip_g"], 0),
        ("text_encoders.clip_g.transformer.", ["clip_g"], 0),
        ("text_encoders.clip_g.", ["clip_l", "clip_g"], 1),
        ("text_encoders.clip_g.transformer.", ["clip_l"], None),
        ("text_encoders.clip_l.transformer.", ["clip_g"], None),
        ("clip_g.", ["clip_l", "clip_g"], 1),
        ("lora_te_", ["clip_h"], 0),
        ("text_encoders.clip_h.transformer.", ["clip_h"], 0),
        ("text_encoders.clip_l.transformer.", ["clip_h"], None),
    ],
)  # fmt: skip
def test_a_name_is_for_a_kind_of_encoder(prefix: str, model: list[str], number: int | None) -> None:
    assert taken_by(prefix, "clip", model) == number


@pytest.mark.defect(5)
@pytest.mark.parametrize(
    ("prefix", "kind", "model", "number"),
    [
        ("lora_te2_", "t5", ["clip_l", "t5"], 1),
        ("lora_te3_", "t5", ["clip_l", "t5"], 1),
        ("lora_te3_", "t5", ["clip_l", "clip_g", "t5"], 2),
        ("lora_te3_", "t5", ["clip_l", "clip_g"], None),
        ("text_encoder_2.", "t5", ["clip_l", "t5"], 1),
        ("text_encoder_3.", "t5", ["clip_l", "clip_g", "t5"], 2),
        ("text_encoders.t5xxl.transformer.", "t5", ["clip_l", "t5"], 1),
        ("text_encoders.t5xxl.transformer.", "t5", ["mt5"], None),
        ("t5.", "t5", ["clip_l", "clip_g", "t5"], 2),
        ("lora_te2_", "mt5", ["mt5"], 0),
        ("text_encoders.mt5xl.transformer.", "mt5", ["mt5"], 0),
        ("lora_te1_", "qwen3", ["qwen3"], 0),
        ("text_encoder.", "qwen3", ["qwen3"], 0),
        ("text_encoders.qwen3_4b.transformer.", "qwen3", ["qwen3"], 0),
        ("text_encoders.llama.transformer.", "qwen3", ["qwen3"], None),
    ],
)
def test_a_name_of_a_long_text_s_layer_is_for_its_architecture(
    prefix: str, kind: str, model: list[str], number: int | None
) -> None:
    assert taken_by(prefix, kind, model) == number


def taken_by(prefix: str, kind: str, model: list[str]) -> int | None:
    layer = LAYER[kind] if prefix.endswith(".") else LAYER[kind].replace(".", "_")
    found = text_name(f"{prefix}{layer}.lora_down.weight")
    assert found is not None
    part, name, _ = found
    assert name == f"{layer}.lora_down.weight"
    parts = list(text_parts(map(encoder_part, model)))
    (number,) = [place for place, one in enumerate(parts) if part in one] or [None]
    return number


@pytest.mark.parametrize(
    ("encoder", "part", "layer"),
    [
        ("clip", "clip", "text_model_encoder_layers_0_mlp_fc1"),
        ("clip", "clip", "encoder_layers_0_mlp_fc1"),
        ("clip", "clip", "text_model.encoder.layers.0.mlp.fc1"),
        ("t5", "t5", "encoder_block_0_layer_0_SelfAttention_q"),
        ("t5", "t5", "encoder.block.0.layer.0.SelfAttention.q"),
        ("qwen3", "qwen3", "layers_0_self_attn_q_proj"),
        ("qwen3", "qwen3", "model.layers.0.self_attn.q_proj"),
    ],
)
def test_text_encoders_of_transformers_take_their_layers(
    encoder: str, part: str, layer: str, tmp_path: Path
) -> None:
    module = text_encoders()[encoder]
    name = {"clip": "fc1.weight", "t5": "SelfAttention.q.weight", "qwen3": "q_proj.weight"}[encoder]
    rows, inputs = next(w.shape for n, w in module.named_parameters() if n.endswith(name))
    prefix = "text_encoder." if "." in layer else "lora_te_"
    tensors = {f"{prefix}{layer}.{end}": value for end, value in lora(rows, inputs).items()}
    used = saved(tmp_path / "lora.safetensors", tensors)
    (changed,) = fit(read_lora(used.file), (part,), weights(module))
    assert changed.endswith(name)


# Files that do not fit


def refused(kind: Kind, path: Path, tensors: Mapping[str, Tensor], words: str) -> None:
    module = draw_network(kind, 1)
    before = weights(module)
    used = saved(path / "lora.safetensors", tensors)
    with pytest.raises(InputError, match=words) as caught:
        WeightSets(module).use((used,))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert_equal(weights(module), before)


TITLES = {
    "sd35": "Stable Diffusion 3 or 3.5",
    "flux": "FLUX.1",
    "z_image": "Z-Image",
    "hunyuan_dit": "HunyuanDiT",
    "qwen_image": "Qwen-Image",
    "krea2": "Krea 2",
    "qwen_image_21": "Qwen-Image 2.1",
    "klein": "FLUX.2",
    "anima": "Anima",
}


@pytest.mark.parametrize(("ours", "theirs"), list(permutations(EACH, 2)))
@pytest.mark.parametrize("naming", ["kohya", "ComfyUI"])
def test_a_lora_of_another_family_is_refused_with_its_name(
    ours: Kind, theirs: Kind, naming: str, tmp_path: Path
) -> None:
    tensors = by_originals(draw_network(theirs, 1), theirs, BY_ORIGINALS[naming])
    blocks = {
        name: tensor
        for name, tensor in tensors.items()
        if "block" in name or "layers" in name or "refiner" in name
    }
    # FLUX.1's blocks have all layers of FLUX.2's
    title = "FLUX.1 or FLUX.2" if theirs == "klein" else TITLES[theirs]
    made = f"made for {title}, not for {TITLES[ours]}"
    if (ours, theirs) == ("flux", "klein"):
        made = "made for another architecture"
    refused(ours, tmp_path, blocks, rf"{made}: transformer\.\S+ (\(|has )shape \[")


@pytest.mark.parametrize(("ours", "theirs"), list(permutations(("flux", "qwen_image"))))
def test_a_lora_of_another_family_is_refused_though_some_of_its_layers_fit(
    ours: Kind, theirs: Kind, tmp_path: Path
) -> None:
    """Their blocks have attention layers of the same names and shapes, as in Lightning's files."""
    module = draw_network(theirs, 1)
    tensors = by_modules(module, theirs, dotted("", KOHYA))
    fitting = {name for name, _ in draw_network(ours, 1).named_parameters()}
    assert any(f"{name.partition('.lora')[0]}.weight" in fitting for name in tensors)
    words = rf"made for {TITLES[theirs]}, not for {TITLES[ours]}: transformer\.\S+ \(shape \["
    refused(ours, tmp_path, tensors, words)


def test_a_lora_of_a_unet_is_refused_with_its_name(kind: Kind, tmp_path: Path) -> None:
    layer = "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_q"
    tensors = {f"{layer}.{end}": value for end, value in lora(32, 32).items()}
    words = f"made for Stable Diffusion 1, 2 or XL, not for {TITLES[kind]}"
    refused(kind, tmp_path, tensors, words)


def test_a_lora_of_another_width_is_refused_with_both_shapes(kind: Kind, tmp_path: Path) -> None:
    layer = next(iter(LAYERS[kind]))
    tensors = {f"diffusion_model.{layer}.{end}": one for end, one in lora(192, 64).items()}
    parts = [draw_network(kind, 1).get_parameter(f"{name}.weight") for name in LAYERS[kind][layer]]
    rows, inputs = sum(map(len, parts)), parts[0].shape[1]
    words = rf"another architecture: .* has shape \[192, 64\], this model \[{rows}, {inputs}\]"
    refused(kind, tmp_path, tensors, words)


def test_a_layer_by_both_its_names_is_refused(
    kind: Kind, module: nn.Module, tmp_path: Path
) -> None:
    tensors = in_peft_s_names(module, kind) | by_originals(module, kind, BY_ORIGINALS["kohya"])
    refused(kind, tmp_path, tensors, r"has \S+ twice \(transformer\.\S+\), expected one LoRA")


def test_a_control_lora_is_refused(tmp_path: Path) -> None:
    tensors = {f"img_in.{end}": one for end, one in lora(32, 128).items()} | {
        "double_blocks.0.img_attn.norm.query_norm.scale": torch.ones(16)
    }
    refused("flux", tmp_path, tensors, "a control LoRA, which replaces norms")


def test_partial_fit_of_a_file_is_reported(
    kind: Kind, module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.save_pretrained(tmp_path / "transformer")
    network = component(tmp_path / "transformer", "network")
    model = ModelRecipe(network, network)
    tensors = by_originals(module, kind, BY_ORIGINALS["kohya"])
    further: Iterable[str] = [f"lora_unet_extra_blocks_{number}_proj" for number in range(5)]
    more = {f"{name}.{end}": value for name in further for end, value in lora(32, 32).items()}
    whole = model.with_lora(saved(tmp_path / "whole.safetensors", tensors))
    assert not list(check_loras(whole))
    part = model.with_lora(saved(tmp_path / "part.safetensors", tensors | more))
    (note,) = check_loras(part)
    count = len(LAYERS[kind]) + 5
    assert f"used without 5 of its {count} layers that the model does not have: " in note
    assert note.endswith("extra_blocks_2_proj and 2 more")
    monkeypatch.setenv("KATZ_LORA_KEYS", "strict")
    with pytest.raises(InputError, match=f"has 5 of its {count} layers that the model does not"):
        list(check_loras(part))
