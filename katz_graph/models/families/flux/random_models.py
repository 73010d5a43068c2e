"""Describes small pipelines with random weights in the shapes of FLUX.1 dev and schnell,
and how to call diffusers' pipelines.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline
from torch import Tensor

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.shared.random_parts import (
    END,
    LONG_WIDTH,
    SIZES,
    T5_ENCODER,
    WIDTHS,
    clip,
    tokenizer,
)
from katz_graph.models.families.shared.random_transformers import (
    Configuration,
    RandomTransformer,
    Stock,
)


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    return {
        "latents": FluxPipeline._pack_latents(noise, *noise.shape),
        "guidance_scale": guidance,
        "max_sequence_length": 256,
    }


def unpacked(made: Tensor, height: int, width: int) -> Tensor:
    latent: Tensor = FluxPipeline._unpack_latents(made, height, width, 8)
    return latent


STOCK = Stock(
    arguments,
    embedded_guidance=3.5,
    unpacked=unpacked,
    editing={
        "fill": ("FluxFillPipeline", {"in_channels": 384, "out_channels": 64}),
        "control": ("FluxControlPipeline", {"in_channels": 128, "out_channels": 64}),
        "reference": ("FluxKontextPipeline", {}),
    },
)


SHIFT = 1.15  # dev's shift of noise levels, at every picture size


def configuration(blocks: int, guided: bool) -> Configuration:
    """Returns arguments of a transformer with two heads and one single block less than double
    blocks. `guided`: takes guidance.
    """
    return {
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "num_layers": blocks,
        "num_single_layers": blocks - 1,
        "in_channels": 64,
        "joint_attention_dim": LONG_WIDTH,
        "pooled_projection_dim": WIDTHS[0],
        "guidance_embeds": guided,
        "axes_dims_rope": [4, 6, 6],
    }


DEV = RandomTransformer(
    pipeline="FluxPipeline",
    network="FluxTransformer2DModel",
    control="FluxControlNetModel",
    configuration=partial(configuration, guided=True),
    control_configuration=lambda network, blocks: network,
    scheduler=lambda: FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=SHIFT, max_shift=SHIFT, shift=3.0
    ),
    text_encoders=(
        (lambda: clip(SIZES[0], None), lambda: tokenizer(END), "CLIPTokenizer"),
        T5_ENCODER,
    ),
    latent=LatentSpace(channels=16, factor=8, scale=0.3611, shift=0.1159),
    absent=("image_encoder", "feature_extractor"),
    stock=STOCK,
    roles=frozenset({"timed", "full size"}),
    wide=lambda heads, side: {"axes_dims_rope": [16, 24, 24]},
    published={
        "num_layers": 19,
        "num_single_layers": 38,
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "axes_dims_rope": [16, 56, 56],
    },
)
SCHNELL = replace(
    DEV,
    configuration=partial(configuration, guided=False),
    scheduler=lambda: FlowMatchEulerDiscreteScheduler(shift=1.0),
    stock=replace(STOCK, editing={}),
    roles=frozenset(),
)
KINDS = {"flux": DEV, "schnell": SCHNELL}
