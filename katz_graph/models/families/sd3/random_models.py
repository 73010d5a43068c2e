"""Describes small pipelines with random weights in the shapes of Stable Diffusion 3 and 3.5,
and how to call diffusers' pipelines.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor, nn

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.shared.random_parts import (
    END,
    LONG_WIDTH,
    POOLED_WIDTH,
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
    return {"latents": noise, "guidance_scale": guidance, "max_sequence_length": 77}


STOCK = Stock(arguments, schedule="normal")


def configuration(blocks: int) -> Configuration:
    """Returns the arguments of a transformer with two heads."""
    return {
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "num_layers": blocks,
        "sample_size": 8,
        "caption_projection_dim": 32,
        "joint_attention_dim": LONG_WIDTH,
        "pooled_projection_dim": WIDTHS[0] + POOLED_WIDTH,
        "pos_embed_max_size": 12,
    }


def later_configuration(blocks: int) -> Configuration:
    """Returns the arguments of a 3.5 transformer: query and key norms, and a second attention in
    the first two blocks.
    """
    return {**configuration(blocks), "qk_norm": "rms_norm", "dual_attention_layers": (0, 1)}


def control_configuration(network: Configuration, blocks: int) -> Configuration:
    without = ("sample_size", "dual_attention_layers")
    return {name: value for name, value in network.items() if name not in without}


def wide(heads: int, side: int) -> Configuration:
    """Returns changes for `heads` heads of width 64 and latents of `side` cells a side."""
    return {"caption_projection_dim": 64 * heads, "pos_embed_max_size": side}


def first_encoder() -> Any:
    """Builds a CLIP encoder with an identity projection, as in the published folders."""
    encoder = clip(SIZES[0], WIDTHS[0])
    nn.init.eye_(encoder.text_projection.weight)
    return encoder


FIRST = RandomTransformer(
    pipeline="StableDiffusion3Pipeline",
    network="SD3Transformer2DModel",
    control="SD3ControlNetModel",
    configuration=configuration,
    control_configuration=control_configuration,
    scheduler=lambda: FlowMatchEulerDiscreteScheduler(shift=3.0),
    text_encoders=(
        (first_encoder, lambda: tokenizer(END), "CLIPTokenizer"),
        (lambda: clip(SIZES[1], POOLED_WIDTH), lambda: tokenizer("!"), "CLIPTokenizer"),
        T5_ENCODER,
    ),
    latent=LatentSpace(channels=16, factor=8, scale=1.5305, shift=0.0609),
    absent=("image_encoder", "feature_extractor", "text_encoder_3", "tokenizer_3"),
    stock=STOCK,
    roles=frozenset({"timed", "streamed"}),
    wide=wide,
    steady={"qk_norm": "rms_norm"},
)
MEDIUM = {
    "sample_size": 128,
    "num_layers": 24,
    "num_attention_heads": 24,
    "attention_head_dim": 64,
    "caption_projection_dim": 1536,
    "pos_embed_max_size": 384,
    "dual_attention_layers": tuple(range(13)),
}
LATER = replace(
    FIRST,
    configuration=later_configuration,
    roles=frozenset({"full size"}),
    published=MEDIUM,
)
KINDS = {"sd3": FIRST, "sd35": LATER}
