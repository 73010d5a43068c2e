"""Stand-in files have the names and shapes of the stock modules, after diffusers' conversion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers
from diffusers.loaders import single_file_utils
from torch import Tensor

from katz_graph.models.families.anima.stand_ins import anima
from katz_graph.models.families.flux2.stand_ins import transformer as flux2
from katz_graph.models.families.krea2.stand_ins import krea2
from katz_graph.models.families.qwen_image.stand_ins import transformer
from katz_graph.models.families.qwen_image_21 import stand_ins as qwen_image_21
from katz_graph.models.loading.sources import vae_recipe
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.stand_ins import text_encoders, vaes
from katz_graph.testing.stand_ins.formats import write

Tensors = dict[str, Tensor]
TEXT = {"hidden_size": 64, "intermediate_size": 96}


def converted(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: getattr(single_file_utils, f"convert_{name}_to_diffusers")(dict(tensors))


def in_transformers(tensors: Tensors) -> Tensors:
    """Returns the tensors with transformers' names of Qwen2.5-VL."""
    rename = {"visual.": "model.visual.", "model.": "model.language_model.", "lm_head.": "lm_head."}
    return {
        rename[start] + name.removeprefix(start): one
        for name, one in tensors.items()
        for start in rename
        if name.startswith(start)
    }


def krea2_network() -> Any:
    return diffusers.Krea2Transformer2DModel(
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=2,
        num_key_value_heads=1,
        intermediate_size=192,
        text_hidden_dim=64,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=192,
        num_layerwise_text_blocks=1,
        num_refiner_text_blocks=1,
        axes_dims_rope=(8, 12, 12),
    )


def anima_in_diffusers(tensors: Tensors) -> Tensors:
    """Returns diffusers' names of Cosmos 2; those of the conditioner are the file's."""
    cosmos = {name: one for name, one in tensors.items() if not name.startswith("llm_adapter.")}
    others = {name: one for name, one in tensors.items() if name not in cosmos}
    return converted("cosmos_transformer_checkpoint")(cosmos) | others


class AnimaParts(torch.nn.Module):
    """Holds the two stock modules."""

    def __init__(self) -> None:
        super().__init__()
        self.cosmos = diffusers.CosmosTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=32,
            num_layers=2,
            mlp_ratio=2.0,
            text_embed_dim=64,
            adaln_lora_dim=16,
            extra_pos_embed_type=None,
        )
        self.llm_adapter = diffusers.AnimaTextConditioner(
            64, 64, 64, num_layers=1, num_attention_heads=2, mlp_ratio=2.0
        )

    def state_dict(self, *given: Any, **options: Any) -> Any:
        whole = super().state_dict(*given, **options)
        return {name.removeprefix("cosmos."): one for name, one in whole.items()}


def qwen25_vl() -> Any:
    text = {"num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1}
    vision = {"depth": 2, "hidden_size": 80, "num_heads": 1, "out_hidden_size": 128}
    text |= TEXT | {"vocab_size": 152064, "hidden_size": 128}
    return transformers.Qwen2_5_VLForConditionalGeneration(
        transformers.Qwen2_5_VLConfig(
            text_config=text, vision_config=vision | {"intermediate_size": 96}
        )
    )


def qwen3_vl() -> Any:
    text = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    vision = {"depth": 3, "hidden_size": 72, "num_heads": 1, "out_hidden_size": 64}
    vision |= {"intermediate_size": 96, "deepstack_visual_indexes": [0, 1, 2]}
    text |= TEXT | {"vocab_size": 151936, "head_dim": 16}
    return transformers.Qwen3VLForConditionalGeneration(
        transformers.Qwen3VLConfig(text_config=text, vision_config=vision)
    )


def qwen_image(**changed: Any) -> Any:
    sizes = {"num_layers": 2, "attention_head_dim": 32, "num_attention_heads": 2}
    sizes |= {"joint_attention_dim": 128, "axes_dims_rope": (4, 14, 14)}
    return diffusers.QwenImageTransformer2DModel(**sizes, **changed)


def flux2_network(guidance_embeds: bool = False) -> Any:
    return diffusers.Flux2Transformer2DModel(
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=32,
        num_attention_heads=2,
        joint_attention_dim=192,
        axes_dims_rope=(8, 8, 8, 8),
        guidance_embeds=guidance_embeds,
    )


def in_mistral(tensors: Tensors) -> Tensors:
    """Returns the tensors with transformers' names of Mistral, and the final norm."""
    words = {"tekken_model", "norm.weight"}
    own = {name.removeprefix("model."): one for name, one in tensors.items()}
    return {name: one for name, one in own.items() if name not in words} | {
        "norm.weight": torch.empty(64)
    }


def mistral3() -> Any:
    text = {"num_hidden_layers": 30, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.MistralConfig(**TEXT, **text, head_dim=128, vocab_size=131072)
    return transformers.MistralModel(config)


@pytest.mark.parametrize(
    ("made", "convert", "stock"),
    [
        (krea2, converted("krea2_transformer_checkpoint"), krea2_network),
        (anima, anima_in_diffusers, AnimaParts),
        (transformer, dict, qwen_image),
        (
            lambda: transformer(layered=True),
            dict,
            lambda: qwen_image(use_additional_t_cond=True, use_layer3d_rope=True),
        ),
        (flux2, converted("flux2_transformer_checkpoint"), flux2_network),
        (
            lambda: flux2(guided=True),
            converted("flux2_transformer_checkpoint"),
            lambda: flux2_network(guidance_embeds=True),
        ),
        (
            qwen_image_21.transformer,
            converted("qwen_image21_transformer_checkpoint"),
            lambda: diffusers.QwenImage21Transformer2DModel(
                num_layers=2,
                attention_head_dim=32,
                num_attention_heads=2,
                context_in_dim=64,
                axes_dims_rope=(4, 14, 14),
            ),
        ),
        (text_encoders.mistral3, in_mistral, mistral3),
        (text_encoders.qwen25_vl, in_transformers, qwen25_vl),
        (lambda: text_encoders.qwen3_vl(4, generates=True), dict, qwen3_vl),
        (
            vaes.qwen_image_vae,
            converted("wan_vae"),
            lambda: diffusers.AutoencoderKLQwenImage(base_dim=8),
        ),
    ],
)
def test_a_stand_in_has_the_tensors_of_the_stock_module(
    made: Callable[[], Tensors], convert: Callable[[Tensors], Tensors], stock: Callable[[], Any]
) -> None:
    with torch.device("meta"):
        wanted = stock().state_dict()
    found = convert(made())
    assert {name: one.shape for name, one in found.items()} == {
        name: one.shape for name, one in wanted.items()
    }


def test_a_stand_in_of_a_vae_with_nested_levels_loads(tmp_path: Path) -> None:
    """diffusers' converter names the decoder's levels as those of another layout."""
    write(tmp_path / "vae.safetensors", vaes.qwen_image_21_vae())
    part = vae_recipe(tmp_path / "vae.safetensors").vae
    with torch.device("meta"):
        wanted = diffusers.AutoencoderKLQwenImage21(base_dim=8, decoder_base_dim=16).state_dict()
    found = ModelStore().vae(part, "cpu", torch.float32).state_dict()
    assert {name: one.shape for name, one in found.items()} == {
        name: one.shape for name, one in wanted.items() if "time_conv" not in name
    }
