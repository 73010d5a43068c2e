"""Derives the configuration of a UNet or ControlNet from its tensor shapes, in the original layout
(CompVis, Stability AI) or in diffusers'.

Takes other values from Stable Diffusion 1, 2 and XL. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.models.loading.configurations import Shapes, how_many

GROUPS = 32  # in every group norm
HEADS = 8  # in Stable Diffusion 1
HEAD_WIDTH = 64  # in all others
SIZE_WIDTH = 256  # width of the embedding of each SDXL size number
SDXL_TEXT_WIDTH = 2048
UNCLIP_TEXT_WIDTH = 1024  # for unCLIP models, based on Stable Diffusion 2
# file name endings of ControlNets that average residuals over the picture
AVERAGING = ("_shuffle", "_shuffle_fp16")


@dataclass(frozen=True, slots=True)
class Level:
    """Describes one resolution of a UNet's encoder."""

    channels: int
    layers: int
    depth: int  # transformer blocks per attention, 0 without attention


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names the tensors that determine the configuration of a UNet or ControlNet."""

    conv_in: str
    conv_out: str
    text: str  # key projection of a cross-attention
    projection: str  # input projection of an attention block
    added: str
    mid: str


ORIGINAL = TensorNames(
    "input_blocks.0.0.weight",
    "out.2.weight",
    "attn2.to_k.weight",
    ".1.proj_in.weight",
    "label_emb.0.0.weight",
    "middle_block.1",
)
DIFFUSERS = TensorNames(
    "conv_in.weight",
    "conv_out.weight",
    "attn2.to_k.weight",
    ".proj_in.weight",
    "add_embedding.linear_1.weight",
    "mid_block.attentions.0",
)


def is_original(names: Container[str]) -> bool:
    """Returns whether a UNet or ControlNet is in the original layout rather than diffusers'."""
    return ORIGINAL.conv_in in names


def unet_configuration(shapes: Shapes, stem: str = "") -> dict[str, Any]:
    """Derives the configuration of a UNet2DConditionModel. Raises InputError, without the file's
    name, if the shapes belong to no supported UNet.
    """
    layout = ORIGINAL if is_original(shapes) else DIFFUSERS
    shared = _trunk(shapes, layout)
    ups = [
        "UpBlock2D" if kind == "DownBlock2D" else "CrossAttnUpBlock2D"
        for kind in reversed(shared["down_block_types"])
    ]
    return {
        "_class_name": "UNet2DConditionModel",
        "out_channels": shapes[layout.conv_out][0],
        "up_block_types": ups,
    } | shared


def controlnet_configuration(shapes: Shapes, stem: str) -> dict[str, Any]:
    """Derives the configuration of a ControlNetModel, or of a ControlNetUnionModel (several kinds
    of reference).

    The file's name shows whether residuals are averaged over the picture, as in ControlNet 1.1
    shuffle; tensor shapes do not.
    """
    original = is_original(shapes)
    hints = "input_hint_block.{}.weight" if original else "controlnet_cond_embedding.{}.weight"
    names = [0, 4, 8, 12] if original else ["conv_in", "blocks.1", "blocks.3", "blocks.5"]
    values: dict[str, Any] = {
        "_class_name": "ControlNetModel",
        "conditioning_channels": shapes[hints.format(names[0])][1],
        "conditioning_embedding_out_channels": [shapes[hints.format(name)][0] for name in names],
        "global_pool_conditions": stem.endswith(AVERAGING),
    }
    if "task_embedding" in shapes:
        kinds, width = shapes["task_embedding"]
        values |= {
            "_class_name": "ControlNetUnionModel",
            "num_control_type": kinds,
            "num_trans_channel": width,
            "num_trans_head": HEADS,
            "num_trans_layer": how_many(shapes, "transformer_layes.{}."),
            "num_proj_channel": shapes["spatial_ch_projs.weight"][0],
        }
    return values | _trunk(shapes, ORIGINAL if original else DIFFUSERS)


def scheduler_configuration(prediction: str, zero_terminal_snr: bool) -> dict[str, Any]:
    """Returns the training noise configuration of Stable Diffusion 1, 2 and XL."""
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


def _trunk(shapes: Shapes, layout: TensorNames) -> dict[str, Any]:
    """Derives the values that UNets and ControlNets share: encoder and middle block."""
    levels = _original_levels(shapes) if layout is ORIGINAL else _diffusers_levels(shapes)
    layers = {level.layers for level in levels}
    deepest = how_many(shapes, f"{layout.mid}.transformer_blocks.{{}}.")
    if len(layers) != 1 or (levels[-1].depth and levels[-1].depth != deepest):
        raise InputError(
            "a UNet whose blocks are of unequal depth (SSD-1B, Segmind Vega), expected that of "
            "Stable Diffusion 1, 2 or XL"
        )
    text = next((shape for name, shape in shapes.items() if name.endswith(layout.text)), None)
    linear = next(
        (len(shape) == 2 for name, shape in shapes.items() if name.endswith(layout.projection)),
        True,
    )
    channels = [level.channels for level in levels]
    added = shapes.get(layout.added)
    _refuse_relatives(shapes, text, added)
    values: dict[str, Any] = {
        "in_channels": shapes[layout.conv_in][1],
        # an SDXL ControlNet may have no cross-attention
        "cross_attention_dim": text[1] if text else SDXL_TEXT_WIDTH,
        "block_out_channels": channels,
        "down_block_types": [
            "CrossAttnDownBlock2D" if level.depth else "DownBlock2D" for level in levels
        ],
        "mid_block_type": "UNetMidBlock2DCrossAttn" if deepest else "UNetMidBlock2D",
        "layers_per_block": layers.pop(),
        "transformer_layers_per_block": [
            *(level.depth or 1 for level in levels[:-1]),
            deepest or 1,
        ],
        # diffusers' name for the number of heads
        "attention_head_dim": [max(1, width // HEAD_WIDTH) for width in channels]
        if linear
        else HEADS,
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


def _refuse_relatives(
    shapes: Shapes, text: tuple[int, ...] | None, added: tuple[int, ...] | None
) -> None:
    if "label_emb.weight" in shapes or "class_embedding.weight" in shapes:
        raise InputError("the x4 upscaler, expected Stable Diffusion 1, 2 or XL")
    if (
        added and text and text[1] == UNCLIP_TEXT_WIDTH
    ) or "class_embedding.linear_1.weight" in shapes:
        raise InputError("an unCLIP model, expected Stable Diffusion 1, 2 or XL")


def _original_levels(shapes: Shapes) -> list[Level]:
    """Groups numbered blocks by resolution; a block with `op` downsamples and ends a level."""
    levels: list[Level] = []
    channels = layers = depth = 0
    for block in range(1, how_many(shapes, "input_blocks.{}.")):
        place = f"input_blocks.{block}"
        if f"{place}.0.op.weight" in shapes:
            levels.append(Level(channels, layers, depth))
            channels = layers = depth = 0
        else:
            channels, layers = shapes[f"{place}.0.out_layers.3.weight"][0], layers + 1
            depth = how_many(shapes, f"{place}.1.transformer_blocks.{{}}.")
    return [*levels, Level(channels, layers, depth)]


def _diffusers_levels(shapes: Shapes) -> list[Level]:
    return [
        Level(
            shapes[f"down_blocks.{block}.resnets.0.conv1.weight"][0],
            how_many(shapes, f"down_blocks.{block}.resnets.{{}}."),
            how_many(shapes, f"down_blocks.{block}.attentions.0.transformer_blocks.{{}}."),
        )
        for block in range(how_many(shapes, "down_blocks.{}."))
    ]
