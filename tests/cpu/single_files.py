"""Makes random pipelines with CLIP's vocabulary, and the single-file checkpoints that users have of
them: the inverse of the loader's conversion.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    ControlNetModel,
    ControlNetUnionModel,
    EulerDiscreteScheduler,
)
from safetensors.torch import save_file
from tiny_models import folder
from torch import Tensor, nn
from transformers import CLIPTokenizer

from katz_graph.models.families.unet.stand_ins import (
    POOLED,
    checkpoint_tensors,
    parts,
    shake,
    unet_settings,
)
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES
from katz_graph.models.text.vocabularies import TOKENIZERS


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


def save(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    save_file(
        {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()},
        path,
        metadata,
    )


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
        shake(module)
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
