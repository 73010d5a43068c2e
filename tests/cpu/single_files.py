"""Makes random pipelines with CLIP's vocabulary, and the single-file checkpoints that users have of
them: the inverse of the loader's conversion.
"""

import json
import re
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

from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES
from katz_graph.models.text.vocabularies import TOKENIZERS

KINDS = ("sd1", "sd2", "sdxl", "refiner")
VOCABULARY = 49408
RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
TOP = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
    "controlnet_mid_block": "middle_block_out.0",
    "controlnet_cond_embedding.conv_in": "input_hint_block.0",
    "controlnet_cond_embedding.conv_out": "input_hint_block.14",
}
VAE_ATTENTION = {
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
}
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
    tensors = _under("model.diffusion_model.", original_unet(made["unet"])) | _under(
        "first_stage_model.", original_vae(made["vae"])
    )
    match kind:
        case "sd1":
            tensors |= _under(
                "cond_stage_model.transformer.", transformers_text(made["text_encoder"])
            )
        case "sd2":
            tensors |= _under("cond_stage_model.model.", open_clip(made["text_encoder"]))
        case "sdxl":
            tensors |= _under(
                "conditioner.embedders.0.transformer.", transformers_text(made["text_encoder"])
            )
            tensors |= _under("conditioner.embedders.1.model.", open_clip(made["text_encoder_2"]))
        case "refiner":
            tensors |= _under("conditioner.embedders.0.model.", open_clip(made["text_encoder_2"]))
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


def original_unet(module: Any) -> dict[str, Tensor]:
    """Returns the weights of a UNet or ControlNet in the original layout."""
    stride = module.config.layers_per_block + 1
    ups = [hasattr(block, "attentions") for block in getattr(module, "up_blocks", ())]

    def rename(name: str) -> str:
        top = next((theirs for theirs in TOP if name.startswith(f"{theirs}.")), None)
        if top:
            return name.replace(top, TOP[top], 1)
        if match := re.match(r"controlnet_down_blocks\.(\d+)\.(.*)", name):
            return f"zero_convs.{match[1]}.0.{match[2]}"
        if match := re.match(r"controlnet_cond_embedding\.blocks\.(\d+)\.(.*)", name):
            return f"input_hint_block.{2 * int(match[1]) + 2}.{match[2]}"
        match = re.match(
            r"(down_blocks|mid_block|up_blocks)\.(?:(\d+)\.)?(resnets|attentions|downsamplers|upsamplers)\.(\d+)\.(.*)",
            name,
        )
        assert match, name
        side, block, what, layer, rest = (
            match[1],
            int(match[2] or 0),
            match[3],
            int(match[4]),
            match[5],
        )
        if what == "resnets":
            head, _, tail = rest.partition(".")
            rest = f"{RESNET[head]}.{tail}"
        if side == "mid_block":
            return f"middle_block.{1 if what == 'attentions' else 2 * layer}.{rest}"
        place = 1 if what == "attentions" else 0
        if side == "down_blocks":
            return (
                f"input_blocks.{(block + 1) * stride}.0.{rest.replace('conv', 'op')}"
                if what == "downsamplers"
                else f"input_blocks.{block * stride + 1 + layer}.{place}.{rest}"
            )
        if what == "upsamplers":
            return f"output_blocks.{(block + 1) * stride - 1}.{2 if ups[block] else 1}.{rest}"
        return f"output_blocks.{block * stride + layer}.{place}.{rest}"

    return {rename(name): tensor for name, tensor in module.state_dict().items()}


def original_vae(module: Any) -> dict[str, Tensor]:
    last = len(module.config.block_out_channels) - 1

    def rename(name: str) -> str:
        name = name.replace("conv_norm_out", "norm_out").replace("conv_shortcut", "nin_shortcut")
        name = re.sub(r"down_blocks\.(\d+)\.resnets\.", r"down.\1.block.", name)
        name = re.sub(
            r"up_blocks\.(\d+)\.resnets\.", lambda match: f"up.{last - int(match[1])}.block.", name
        )
        name = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample", name)
        name = re.sub(
            r"up_blocks\.(\d+)\.upsamplers\.0",
            lambda match: f"up.{last - int(match[1])}.upsample",
            name,
        )
        name = re.sub(
            r"mid_block\.resnets\.(\d)", lambda match: f"mid.block_{int(match[1]) + 1}", name
        )
        for ours, theirs in VAE_ATTENTION.items():
            name = name.replace(f"mid_block.attentions.0.{ours}.", f"mid.attn_1.{theirs}.")
        return name

    return {
        rename(name): tensor[:, :, None, None]
        if "attentions" in name and tensor.ndim == 2
        else tensor
        for name, tensor in module.state_dict().items()
    }


def transformers_text(module: nn.Module) -> dict[str, Tensor]:
    tensors = {
        f"text_model.{name.removeprefix('text_model.')}": tensor
        for name, tensor in module.state_dict().items()
    }
    return tensors | {"text_model.embeddings.position_ids": torch.arange(77)[None]}


def open_clip(module: nn.Module) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {"logit_scale": torch.tensor(1.0)}
    state = {
        name.removeprefix("text_model."): tensor for name, tensor in module.state_dict().items()
    }
    for name, tensor in state.items():
        if name == "text_projection.weight":
            tensors["text_projection"] = tensor.T
        elif match := re.match(r"(encoder\.layers\.\d+)\.self_attn\.q_proj\.(weight|bias)", name):
            joined = torch.cat(
                [state[f"{match[1]}.self_attn.{part}_proj.{match[2]}"] for part in "qkv"]
            )
            tensors[f"{_open_clip_name(match[1])}.attn.in_proj_{match[2]}"] = joined
        elif not re.search(r"self_attn\.[kv]_proj", name):
            tensors[_open_clip_name(name)] = tensor
    return tensors


def _open_clip_name(name: str) -> str:
    for ours, theirs in {
        "embeddings.token_embedding": "token_embedding",
        "embeddings.position_embedding.weight": "positional_embedding",
        "final_layer_norm": "ln_final",
        "encoder.layers": "transformer.resblocks",
        "layer_norm": "ln_",
        "self_attn.out_proj": "attn.out_proj",
        "mlp.fc1": "mlp.c_fc",
        "mlp.fc2": "mlp.c_proj",
    }.items():
        name = name.replace(ours, theirs)
    return name


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


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
