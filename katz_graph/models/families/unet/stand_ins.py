"""Makes stand-ins for single-file checkpoints of UNets: SD1, SD2, SDXL and its refiner. The tensors
of random pipelines are renamed by the inverse of the loader's conversion.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from katz_graph.models.families.shared.stand_ins import StandIn, Tensors
from katz_graph.models.families.unet.random_models.original import (
    open_clip,
    original_unet,
    original_vae,
    transformers_text,
    under,
)

KINDS = ("sd1", "sd2", "sdxl", "refiner")
VOCABULARY = 49408
TEXT = {
    "sd1": ({"hidden_size": 64, "num_attention_heads": 1, "hidden_act": "quick_gelu"},),
    "sd2": ({"hidden_size": 128, "num_attention_heads": 2, "hidden_act": "gelu"},),
    "sdxl": (
        {"hidden_size": 64, "num_attention_heads": 1, "hidden_act": "quick_gelu"},
        {"hidden_size": 128, "num_attention_heads": 2, "hidden_act": "gelu"},
    ),
    "refiner": ({"hidden_size": 128, "num_attention_heads": 2, "hidden_act": "gelu"},),
}
POOLED = {"sdxl": 80, "refiner": 128}


def unet_settings(kind: str, in_channels: int = 4) -> dict[str, Any]:
    shared: dict[str, Any] = {
        "in_channels": in_channels,
        "layers_per_block": 2,
        "cross_attention_dim": sum(encoder["hidden_size"] for encoder in TEXT[kind]),
    }
    attends = {
        "sd1": (1, 1, 1, 0),
        "sd2": (1, 1, 1, 0),
        "sdxl": (0, 1, 1),
        "refiner": (0, 1, 1, 0),
    }[kind]
    shared["down_block_types"] = [
        "CrossAttnDownBlock2D" if one else "DownBlock2D" for one in attends
    ]
    shared["up_block_types"] = [
        "CrossAttnUpBlock2D" if one else "UpBlock2D" for one in reversed(attends)
    ]
    if kind == "sd1":
        return shared | {"block_out_channels": [32, 64, 64, 64], "attention_head_dim": 8}
    channels = [64, 64, 128] if kind == "sdxl" else [64, 64, 128, 128]
    shared |= {
        "block_out_channels": channels,
        "attention_head_dim": [width // 64 for width in channels],
        "use_linear_projection": True,
    }
    if kind == "sd2":
        return shared
    return shared | {
        "transformer_layers_per_block": [1, 1, 2] if kind == "sdxl" else [2, 2, 2, 2],
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": (6 if kind == "sdxl" else 5) * 256 + POOLED[kind],
    }


@cache
def parts(kind: str, in_channels: int = 4) -> dict[str, Any]:
    """Returns the live modules of a random pipeline."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(KINDS.index(kind))
        made: dict[str, Any] = {
            "unet": UNet2DConditionModel(**unet_settings(kind, in_channels)),
            "vae": vae(kind),
        }
        for number, sizes in enumerate(TEXT[kind]):
            projects = kind == "refiner" or number == 1
            made["text_encoder_2" if projects else "text_encoder"] = text_encoder(
                sizes, POOLED.get(kind, 64), projects
            )
        for module in made.values():
            shake(module)
    return made


def vae(kind: str) -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(32, 32, 64, 64),
        layers_per_block=1,
        scaling_factor=0.13025 if kind in POOLED else 0.18215,
        force_upcast=kind in POOLED,
    )


def text_encoder(sizes: dict[str, Any], projection: int, projects: bool) -> nn.Module:
    config = CLIPTextConfig(
        **sizes,
        vocab_size=VOCABULARY,
        intermediate_size=2 * sizes["hidden_size"],
        num_hidden_layers=3,
        projection_dim=projection,
        bos_token_id=VOCABULARY - 2,
        eos_token_id=VOCABULARY - 1,
        initializer_factor=4.0,
    )
    made: nn.Module = CLIPTextModelWithProjection(config) if projects else CLIPTextModel(config)
    return made


def checkpoint_tensors(kind: str, in_channels: int = 4) -> Tensors:
    made = parts(kind, in_channels)
    tensors = under("model.diffusion_model.", original_unet(made["unet"])) | under(
        "first_stage_model.", original_vae(made["vae"])
    )
    match kind:
        case "sd1":
            tensors |= under(
                "cond_stage_model.transformer.", transformers_text(made["text_encoder"])
            )
        case "sd2":
            tensors |= under("cond_stage_model.model.", open_clip(made["text_encoder"]))
        case "sdxl":
            tensors |= under(
                "conditioner.embedders.0.transformer.", transformers_text(made["text_encoder"])
            )
            tensors |= under("conditioner.embedders.1.model.", open_clip(made["text_encoder_2"]))
        case "refiner":
            tensors |= under("conditioner.embedders.0.model.", open_clip(made["text_encoder_2"]))
    return tensors | {
        "alphas_cumprod": torch.linspace(1, 0, 10),
        "model_ema.decay": torch.tensor(0.9),
    }


def shake(module: nn.Module) -> None:
    """Moves norms away from one and zero, so that a missing one is noticed, but not so far that
    Stable Diffusion 2 is detected as a v-prediction model.
    """
    for part in module.modules():
        if isinstance(part, nn.GroupNorm | nn.LayerNorm):
            nn.init.normal_(part.weight, 1.0, 0.1)
            nn.init.normal_(part.bias, 0.0, 0.05)


STAND_INS = (
    StandIn("checkpoints", r"^sd_xl_refiner", partial(checkpoint_tensors, "refiner")),
    StandIn("checkpoints", r"^sd_xl_", partial(checkpoint_tensors, "sdxl")),
    StandIn("checkpoints", r"^v1-5|^sd15|^dreamshaper", partial(checkpoint_tensors, "sd1")),
    StandIn("vae", r"^vae-ft-mse", lambda: original_vae(vae("sd1"))),
)
