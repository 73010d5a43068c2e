"""Describes the parts of the published SDXL for benches with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import CLIPTextConfig

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
NETWORK = {
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
VAE = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
    "sample_size": 1024,
    "scaling_factor": 0.13025,
    "force_upcast": True,
}
HINTS = (16, 32, 96, 256)


@dataclass(frozen=True, slots=True)
class FullSize:
    """Holds the configurations of network, VAE and both text encoders, and the channels of a
    ControlNet's reference embedding.
    """

    network: Mapping[str, Any]
    vae: Mapping[str, Any]
    texts: tuple[CLIPTextConfig, CLIPTextConfig]
    hints: tuple[int, ...]


FULL_SIZE = FullSize(NETWORK, VAE, (TEXT, WIDE_TEXT), HINTS)
