"""Renames the tensors of UNets, ControlNets, VAEs and text encoders to the layout of the original
code, in which most checkpoints are distributed: the inverse of the loader's conversion.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

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
    """Returns the weights of a VAE in the original layout."""
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
    """Returns the weights of a CLIP text encoder with the names of transformers' early versions."""
    tensors = {
        f"text_model.{name.removeprefix('text_model.')}": tensor
        for name, tensor in module.state_dict().items()
    }
    return tensors | {"text_model.embeddings.position_ids": torch.arange(77)[None]}


def open_clip(module: nn.Module) -> dict[str, Tensor]:
    """Returns the weights of a CLIP text encoder in the layout of OpenCLIP."""
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


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with a prefix to their names."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def sdxl_checkpoint(network: nn.Module, vae: nn.Module, *texts: nn.Module) -> dict[str, Tensor]:
    """Returns the weights of SDXL's network, VAE and two text encoders as one checkpoint."""
    first, second = texts
    return (
        under("model.diffusion_model.", original_unet(network))
        | under("first_stage_model.", original_vae(vae))
        | under("conditioner.embedders.0.transformer.", transformers_text(first))
        | under("conditioner.embedders.1.model.", open_clip(second))
    )
