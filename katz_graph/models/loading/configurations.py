"""Derives a module's configuration from the shapes of its tensors, in the original layout (CompVis,
Stability AI) or in diffusers'.

What shapes cannot say is as Stable Diffusion 1, 2 and XL were made. Never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from katz_graph.errors import InputError

Shapes = Mapping[str, tuple[int, ...]]
"""Maps the tensors of one module, named without the file's prefix, to their shapes."""

GROUPS = 32  # of every normalisation
HEADS = 8  # of Stable Diffusion 1
HEAD_WIDTH = 64  # of all others, and of the text encoders
SIZE_WIDTH = 256  # of the embedding of each of SDXL's size numbers
PROJECTING_WIDTH = 1280  # of SDXL's second text encoder, OpenCLIP's ViT-bigG
SDXL_TEXT_WIDTH = 2048
OPEN_CLIP_WIDTHS = (1024, PROJECTING_WIDTH)  # ViT-H (Stable Diffusion 2) and ViT-bigG
VOCABULARY = 49408


@dataclass(frozen=True, slots=True)
class Level:
    """Describes one resolution of a UNet's way down."""

    channels: int
    layers: int
    depth: int  # transformer blocks per attention, 0 without attention


@dataclass(frozen=True, slots=True)
class Layout:
    """Names the tensors that determine a UNet's or ControlNet's configuration."""

    conv_in: str
    conv_out: str
    text: str  # a cross-attention's key
    projection: str  # how attention begins
    added: str
    mid: str


ORIGINAL = Layout(
    "input_blocks.0.0.weight", "out.2.weight", "attn2.to_k.weight", ".1.proj_in.weight", "label_emb.0.0.weight", "middle_block.1"
)
DIFFUSERS = Layout(
    "conv_in.weight", "conv_out.weight", "attn2.to_k.weight", ".proj_in.weight", "add_embedding.linear_1.weight", "mid_block.attentions.0"
)


def is_original(shapes: Shapes) -> bool:
    """Returns true if a UNet or ControlNet is in the original layout, as opposed to diffusers'."""
    return ORIGINAL.conv_in in shapes


def unet_configuration(shapes: Shapes) -> dict[str, Any]:
    """Derives the configuration of a UNet2DConditionModel. InputError, without the file's name,
    when the shapes are of no UNet that can be built.
    """
    layout = ORIGINAL if is_original(shapes) else DIFFUSERS
    shared = _trunk(shapes, layout)
    ups = ["UpBlock2D" if kind == "DownBlock2D" else "CrossAttnUpBlock2D" for kind in reversed(shared["down_block_types"])]
    return {"_class_name": "UNet2DConditionModel", "out_channels": shapes[layout.conv_out][0], "up_block_types": ups} | shared


def controlnet_configuration(shapes: Shapes, averages: bool) -> dict[str, Any]:
    """Derives that of a ControlNetModel, or of a ControlNetUnionModel (several kinds of reference).

    averages: it adds its residuals' mean over the picture, as ControlNet 1.1's for shuffled
    pictures does; shapes cannot say that.
    """
    original = is_original(shapes)
    hints = "input_hint_block.{}.weight" if original else "controlnet_cond_embedding.{}.weight"
    names = [0, 4, 8, 12] if original else ["conv_in", "blocks.1", "blocks.3", "blocks.5"]
    values: dict[str, Any] = {
        "_class_name": "ControlNetModel",
        "conditioning_channels": shapes[hints.format(names[0])][1],
        "conditioning_embedding_out_channels": [shapes[hints.format(name)][0] for name in names],
        "global_pool_conditions": averages,
    }
    if "task_embedding" in shapes:
        kinds, width = shapes["task_embedding"]
        values |= {
            "_class_name": "ControlNetUnionModel",
            "num_control_type": kinds,
            "num_trans_channel": width,
            "num_trans_head": HEADS,
            "num_trans_layer": _how_many(shapes, "transformer_layes.{}."),
            "num_proj_channel": shapes["spatial_ch_projs.weight"][0],
        }
    return values | _trunk(shapes, ORIGINAL if original else DIFFUSERS)


def vae_configuration(shapes: Shapes, scaling_factor: float, overflows: bool) -> dict[str, Any]:
    """Derives that of an AutoencoderKL, whose scaling factor and behaviour in half precision shapes
    cannot say.
    """
    original = "encoder.down.0.block.0.conv1.weight" in shapes
    resnet = "encoder.down.{}.block.{}.conv1.weight" if original else "encoder.down_blocks.{}.resnets.{}.conv1.weight"
    levels = next(level for level in count() if resnet.format(level, 0) not in shapes)
    latents = shapes["decoder.conv_in.weight"][1]
    if latents != 4:
        raise InputError(f"a VAE with latents of {latents} channels, expected the 4 of Stable Diffusion 1, 2 and XL")
    return {
        "_class_name": "AutoencoderKL",
        "in_channels": shapes["encoder.conv_in.weight"][1],
        "out_channels": shapes["decoder.conv_out.weight"][0],
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "block_out_channels": [shapes[resnet.format(level, 0)][0] for level in range(levels)],
        "layers_per_block": next(layer for layer in count() if resnet.format(0, layer) not in shapes),
        "latent_channels": latents,
        "norm_num_groups": GROUPS,
        "scaling_factor": scaling_factor,
        "force_upcast": overflows,
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
    }


def text_configuration(shapes: Shapes, projecting: bool | None = None) -> dict[str, Any]:
    """Derives that of a CLIPTextModel, or of SDXL's second, a CLIPTextModelWithProjection.

    projecting: it is SDXL's second; None tells it from the width.
    """
    open_clip = "positional_embedding" in shapes
    shapes = {name.removeprefix("text_model."): shape for name, shape in shapes.items()}
    table, positions, layer, inner = (
        ("token_embedding.weight", "positional_embedding", "transformer.resblocks.{}.", "mlp.c_fc.weight")
        if open_clip
        else ("embeddings.token_embedding.weight", "embeddings.position_embedding.weight", "encoder.layers.{}.", "mlp.fc1.weight")
    )
    vocabulary, width = shapes[table]
    if vocabulary != VOCABULARY:
        raise InputError(f"a text encoder with a vocabulary of {vocabulary:,} tokens, expected CLIP's {VOCABULARY:,}")
    projection = shapes.get("text_projection") or tuple(reversed(shapes.get("text_projection.weight", ()))) or (width, width)
    projecting = width == PROJECTING_WIDTH if projecting is None else projecting
    return {
        "architectures": ["CLIPTextModelWithProjection" if projecting else "CLIPTextModel"],
        "model_type": "clip_text_model",
        "hidden_act": "gelu" if open_clip or width in OPEN_CLIP_WIDTHS else "quick_gelu",
        "hidden_size": width,
        "intermediate_size": shapes[layer.format(0) + inner][0],
        "max_position_embeddings": shapes[positions][0],
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "num_hidden_layers": _how_many(shapes, layer),
        "projection_dim": projection[1],
        "vocab_size": vocabulary,
        "bos_token_id": VOCABULARY - 2,
        "eos_token_id": VOCABULARY - 1,
        "pad_token_id": 1,
        "layer_norm_eps": 1e-5,
    }


def scheduler_configuration(prediction: str, zero_terminal_snr: bool) -> dict[str, Any]:
    """Returns the noise configuration that Stable Diffusion 1, 2 and XL were trained with."""
    return {
        "_class_name": "EulerDiscreteScheduler",
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "beta_end": 0.012,
        "num_train_timesteps": 1000,
        "prediction_type": prediction,
        "rescale_betas_zero_snr": zero_terminal_snr,
        "steps_offset": 1,
        "timestep_spacing": "trailing" if zero_terminal_snr else "leading",
    }


def _trunk(shapes: Shapes, layout: Layout) -> dict[str, Any]:
    """Derives what UNets and ControlNets share: the way down and the middle."""
    levels = _original_levels(shapes) if layout is ORIGINAL else _diffusers_levels(shapes)
    layers, deepest = {level.layers for level in levels}, _how_many(shapes, f"{layout.mid}.transformer_blocks.{{}}.")
    if len(layers) != 1 or (levels[-1].depth and levels[-1].depth != deepest):
        raise InputError("a UNet whose blocks are of unequal depth (SSD-1B, Segmind Vega), expected that of Stable Diffusion 1, 2 or XL")
    text = next((shape for name, shape in shapes.items() if name.endswith(layout.text)), None)
    linear = next((len(shape) == 2 for name, shape in shapes.items() if name.endswith(layout.projection)), True)
    channels = [level.channels for level in levels]
    added = shapes.get(layout.added)
    _refuse_relatives(shapes, text, added)
    values: dict[str, Any] = {
        "in_channels": shapes[layout.conv_in][1],
        "cross_attention_dim": text[1] if text else SDXL_TEXT_WIDTH,  # a ControlNet of SDXL may do without text
        "block_out_channels": channels,
        "down_block_types": ["CrossAttnDownBlock2D" if level.depth else "DownBlock2D" for level in levels],
        "mid_block_type": "UNetMidBlock2DCrossAttn" if deepest else "UNetMidBlock2D",
        "layers_per_block": layers.pop(),
        "transformer_layers_per_block": [*(level.depth or 1 for level in levels[:-1]), deepest or 1],
        "attention_head_dim": [max(1, width // HEAD_WIDTH) for width in channels] if linear else HEADS,  # the number of heads
        "use_linear_projection": linear,
        "norm_num_groups": GROUPS,
    }
    if "time_embedding.cond_proj.weight" in shapes:
        values["time_cond_proj_dim"] = shapes["time_embedding.cond_proj.weight"][1]
    if added:
        values |= {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": SIZE_WIDTH,
            "projection_class_embeddings_input_dim": added[1],
        }
    return values


def _refuse_relatives(shapes: Shapes, text: tuple[int, ...] | None, added: tuple[int, ...] | None) -> None:
    if "label_emb.weight" in shapes or "class_embedding.weight" in shapes:
        raise InputError("the x4 upscaler, expected Stable Diffusion 1, 2 or XL")
    if (added and text and text[1] == OPEN_CLIP_WIDTHS[0]) or "class_embedding.linear_1.weight" in shapes:
        raise InputError("an unCLIP model, expected Stable Diffusion 1, 2 or XL")


def _original_levels(shapes: Shapes) -> list[Level]:
    """Groups numbered blocks by level; one with `op` halves the resolution and ends a level."""
    levels: list[Level] = []
    channels = layers = depth = 0
    for block in range(1, _how_many(shapes, "input_blocks.{}.")):
        place = f"input_blocks.{block}"
        if f"{place}.0.op.weight" in shapes:
            levels.append(Level(channels, layers, depth))
            channels = layers = depth = 0
        else:
            channels, layers = shapes[f"{place}.0.out_layers.3.weight"][0], layers + 1
            depth = _how_many(shapes, f"{place}.1.transformer_blocks.{{}}.")
    return [*levels, Level(channels, layers, depth)]


def _diffusers_levels(shapes: Shapes) -> list[Level]:
    return [
        Level(
            shapes[f"down_blocks.{block}.resnets.0.conv1.weight"][0],
            _how_many(shapes, f"down_blocks.{block}.resnets.{{}}."),
            _how_many(shapes, f"down_blocks.{block}.attentions.0.transformer_blocks.{{}}."),
        )
        for block in range(_how_many(shapes, "down_blocks.{}."))
    ]


def _how_many(shapes: Shapes, pattern: str) -> int:
    """Counts the numbers that stand in the pattern's place."""
    before, after = map(re.escape, pattern.split("{}"))
    numbered = re.compile(rf"{before}(\d+){after}")
    return len({match[1] for name in shapes if (match := numbered.match(name))})
