"""Tensor shapes determine the published models' configurations, in both layouts."""

from types import SimpleNamespace

import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.unet.configurations import unet_configuration
from katz_graph.models.families.unet.random_models.original import (
    open_clip,
    original_unet,
    original_vae,
    transformers_text,
)
from katz_graph.models.loading.configurations import text_configuration
from katz_graph.models.vae.files import of_blocks

CROSS, PLAIN = "CrossAttnDownBlock2D", "DownBlock2D"
FOUR = {
    "block_out_channels": (320, 640, 1280, 1280),
    "down_block_types": (CROSS, CROSS, CROSS, PLAIN),
}
XL = {
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
}
UNETS = {
    "sd1": FOUR | {"cross_attention_dim": 768, "attention_head_dim": 8},
    "sd1-inpainting": FOUR
    | {"cross_attention_dim": 768, "attention_head_dim": 8, "in_channels": 9},
    "sd2": FOUR
    | {
        "cross_attention_dim": 1024,
        "attention_head_dim": (5, 10, 20, 20),
        "use_linear_projection": True,
    },
    "sdxl": XL
    | {
        "block_out_channels": (320, 640, 1280),
        "down_block_types": (PLAIN, CROSS, CROSS),
        "cross_attention_dim": 2048,
        "attention_head_dim": (5, 10, 20),
        "transformer_layers_per_block": (1, 2, 10),
        "projection_class_embeddings_input_dim": 2816,
    },
    "refiner": XL
    | {
        "block_out_channels": (384, 768, 1536, 1536),
        "down_block_types": (PLAIN, CROSS, CROSS, PLAIN),
        "cross_attention_dim": 1280,
        "attention_head_dim": (6, 12, 24, 24),
        "transformer_layers_per_block": (4, 4, 4, 4),
        "projection_class_embeddings_input_dim": 2560,
    },
}
TEXTS = {
    "clip-l": (768, 3072, 12, 12, 768, "quick_gelu", False),
    "open-clip-h": (1024, 4096, 16, 24, 1024, "gelu", False),
    "open-clip-g": (1280, 5120, 20, 32, 1280, "gelu", True),
}


def shapes(tensors):
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


@pytest.mark.parametrize("name", UNETS)
def test_unets(name):
    settings = UNETS[name]
    ups = [kind.replace("Down", "Up") for kind in reversed(settings["down_block_types"])]
    with torch.device("meta"):
        expected = UNet2DConditionModel(**settings, up_block_types=ups)
    for tensors in (original_unet(expected), expected.state_dict()):
        made_config = unet_configuration(shapes(tensors))
        for key, value in {
            "in_channels": 4,
            "out_channels": 4,
            "layers_per_block": 2,
            "norm_num_groups": 32,
            **settings,
        }.items():
            if key == "transformer_layers_per_block":  # undefined at levels without attention
                levels = [
                    index
                    for index, kind in enumerate(settings["down_block_types"])
                    if kind == CROSS
                ]
                assert [made_config[key][index] for index in levels] == [
                    value[index] for index in levels
                ]
                assert made_config[key][-1] == value[-1]
            else:
                assert (
                    tuple(made_config[key]) if isinstance(value, tuple) else made_config[key]
                ) == value, key
        with torch.device("meta"):
            assert shapes(UNet2DConditionModel.from_config(made_config).state_dict()) == shapes(
                expected.state_dict()
            )


@pytest.mark.parametrize("name", TEXTS)
def test_text_encoders(name):
    width, inner, heads, layers, projection, activation, projects = TEXTS[name]
    config = CLIPTextConfig(
        hidden_size=width, intermediate_size=inner, num_attention_heads=heads, num_hidden_layers=layers, projection_dim=projection,
        hidden_act=activation, vocab_size=49408,
    )  # fmt: skip
    with torch.device("meta"):
        module = (CLIPTextModelWithProjection if projects else CLIPTextModel)(config)
    layouts = [transformers_text(module)] + ([open_clip(module)] if activation == "gelu" else [])
    for tensors in layouts:
        made_config = SimpleNamespace(**text_configuration(shapes(tensors)))
        assert (
            made_config.hidden_size,
            made_config.intermediate_size,
            made_config.num_attention_heads,
        ) == (
            width,
            inner,
            heads,
        )
        assert (made_config.num_hidden_layers, made_config.hidden_act, made_config.vocab_size) == (
            layers,
            activation,
            49408,
        )
        assert (made_config.projection_dim == projection) and (
            "WithProjection" in made_config.architectures[0]
        ) == projects


def test_the_vae():
    blocks = {
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
    }
    with torch.device("meta"):
        expected = AutoencoderKL(
            **blocks, block_out_channels=(128, 256, 512, 512), layers_per_block=2
        )
    for tensors in (original_vae(expected), expected.state_dict()):
        made_config = of_blocks(shapes(tensors), LatentSpace(4, 8, 0.13025), overflows=True)
        assert (
            made_config["block_out_channels"],
            made_config["layers_per_block"],
            made_config["latent_channels"],
        ) == (
            [128, 256, 512, 512],
            2,
            4,
        )
        assert (
            made_config["scaling_factor"],
            made_config["force_upcast"],
            made_config["use_quant_conv"],
        ) == (
            0.13025,
            True,
            True,
        )
