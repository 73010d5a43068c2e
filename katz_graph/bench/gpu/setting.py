"""Describes what is measured: the device, and the sizes of models and requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CLIPTextConfig

from katz_graph.bench.random_models import Kind

WIDE_TEXT = CLIPTextConfig(
    hidden_size=1280,
    intermediate_size=5120,
    num_hidden_layers=32,
    num_attention_heads=20,
    projection_dim=1280,
    hidden_act="gelu",
    vocab_size=49408,
)
TEXT = CLIPTextConfig(
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=12,
    num_attention_heads=12,
    projection_dim=768,
    vocab_size=49408,
)
SDXL_UNET = {
    "sample_size": 128,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "cross_attention_dim": 2048,
    "attention_head_dim": (5, 10, 20),
    "use_linear_projection": True,
    "transformer_layers_per_block": (1, 2, 10),
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
SDXL_VAE = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "sample_size": 1024,
    "scaling_factor": 0.13025,
    "force_upcast": True,
}
TRANSFORMERS: Mapping[Kind, Mapping[str, Any]] = {
    "sd35": {
        "sample_size": 128,
        "num_layers": 24,
        "num_attention_heads": 24,
        "attention_head_dim": 64,
        "caption_projection_dim": 1536,
        "pos_embed_max_size": 384,
        "dual_attention_layers": tuple(range(13)),
    },
    "flux": {
        "num_layers": 19,
        "num_single_layers": 38,
        "num_attention_heads": 24,
        "attention_head_dim": 128,
        "axes_dims_rope": [16, 56, 56],
    },
}
"""What the medium SD3.5 and FLUX.1 dev have, but for the widths of their texts, which are small."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Holds the device and its number format; configurations of an SDXL's parts and of
    transformers; and the sizes of what is measured.
    """

    device: torch.device
    dtype: torch.dtype
    unet: Mapping[str, Any]
    vae: Mapping[str, Any]
    texts: tuple[CLIPTextConfig, CLIPTextConfig]
    hints: tuple[int, ...]  # channels of a ControlNet's embedding of its picture
    transformers: Mapping[Kind, Mapping[str, Any]]
    sides: tuple[int, ...]  # of latents
    product: int  # the side of matrices that measure the peak
    array: int  # bytes that measure the bandwidth
    large: int  # bytes from which an array does not fit into the cache
    rank: int  # of LoRAs
    steps: int  # of a request
    rounds: int
    many: int  # requests over which memory must stay flat
    compiler: str  # of torch.compile


def full_size(device: torch.device) -> Setting:
    """Returns SDXL as it was published, in float16; transformers' format is the bench's own."""
    return Setting(
        device,
        torch.float16,
        SDXL_UNET,
        SDXL_VAE,
        (TEXT, WIDE_TEXT),
        (16, 32, 96, 256),
        TRANSFORMERS,
        (128, 96, 64),
        product=8192,
        array=1 << 30,
        large=64_000_000,
        rank=64,
        steps=20,
        rounds=5,
        many=200,
        compiler="inductor",
    )
