"""Makes random pipelines with CLIP's vocabulary, and the single-file checkpoints that users have of
them: the inverse of the loader's conversion.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    ControlNetModel,
    ControlNetUnionModel,
    EulerDiscreteScheduler,
    UNet2DConditionModel,
)
from safetensors.torch import save_file
from tiny_models import folder
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from katz_graph.models.families.unet.random_models.original import (
    open_clip,
    original_unet,
    original_vae,
    transformers_text,
    under,
)
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES
from katz_graph.models.text.vocabularies import TOKENIZERS

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
            _shake(module)
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
    return CLIPTextModelWithProjection(config) if projects else CLIPTextModel(config)


@cache
def pipeline_folder(kind: str, in_channels: int = 4) -> Path:
    """Returns a pipeline in diffusers' folder layout."""
    place = folder() / f"single-{kind}-{in_channels}"
    index: dict[str, Any] = {
        "_class_name": "StableDiffusionXLPipeline" if kind in POOLED else "StableDiffusionPipeline"
    }
    with quiet(*LIBRARIES):
        for name, module in parts(kind, in_channels).items():
            module.save_pretrained(place / name)
            index[name] = [type(module).__module__.split(".")[0], type(module).__name__]
            if name.startswith("text_encoder"):
                tokenizer = name.replace("text_encoder", "tokenizer")
                pad = "!" if module.config.hidden_act == "gelu" else "<|endoftext|>"
                CLIPTokenizer.from_pretrained(
                    TOKENIZERS / "clip_tokenizer", pad_token=pad, model_max_length=77
                ).save_pretrained(place / tokenizer)
                index[tokenizer] = ["transformers", "CLIPTokenizer"]
        EulerDiscreteScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            steps_offset=1,
            timestep_spacing="leading",
        ).save_pretrained(place / "scheduler")
    index["scheduler"] = ["diffusers", "EulerDiscreteScheduler"]
    (place / "model_index.json").write_text(json.dumps(index))
    return place


@cache
def checkpoint(kind: str, in_channels: int = 4) -> Path:
    """Returns the same pipeline as one file in the layout of the original code."""
    path = folder() / f"single-{kind}-{in_channels}.safetensors"
    save(path, checkpoint_tensors(kind, in_channels))
    return path


def checkpoint_tensors(kind: str, in_channels: int = 4) -> dict[str, Tensor]:
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


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    save_file(
        {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()},
        path,
        metadata,
    )


def _shake(module: nn.Module) -> None:
    """Moves norms away from one and zero, so that a missing one is noticed, but not so far that
    Stable Diffusion 2 is detected as a v-prediction model.
    """
    for part in module.modules():
        if isinstance(part, nn.GroupNorm | nn.LayerNorm):
            nn.init.normal_(part.weight, 1.0, 0.1)
            nn.init.normal_(part.bias, 0.0, 0.05)


@cache
def controlnet(kind: str) -> Any:
    taken = {name: value for name, value in unet_settings(kind).items() if name != "up_block_types"}
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(7)
        module = ControlNetModel(**taken, conditioning_embedding_out_channels=(4, 8, 12, 16))
        for layer in (
            *module.controlnet_down_blocks,
            module.controlnet_mid_block,
            module.controlnet_cond_embedding.conv_out,
        ):
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.normal_(layer.bias, std=0.02)
        _shake(module)
    return module


@cache
def union_controlnet() -> Any:
    """Returns a ControlNet for several kinds of reference, as exists for SDXL."""
    taken = {
        name: value for name, value in unet_settings("sdxl").items() if name != "up_block_types"
    }
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(8)
        module = ControlNetUnionModel(
            **taken,
            conditioning_embedding_out_channels=(4, 8, 12, 16),
            num_control_type=8,
            num_trans_channel=64,
            num_trans_layer=2,
            num_proj_channel=64,
        )
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.1)
    return module.eval()
