"""Defines the measured device, and the sizes of models and requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CLIPTextConfig

from katz_graph.testing.random_models import Kind, kinds, playing, usual


@dataclass(frozen=True, slots=True)
class Setting:
    """Holds the device, the model configurations, and the sizes of requests."""

    device: torch.device
    dtype: torch.dtype
    network: Mapping[str, Any]
    vae: Mapping[str, Any]
    texts: tuple[CLIPTextConfig, CLIPTextConfig]
    hints: tuple[int, ...]  # channels of a ControlNet's conditioning embedding
    transformers: Mapping[Kind, Mapping[str, Any]]  # full size, except for small text widths
    sides: tuple[int, ...]  # height and width of latents
    product: int  # rows and columns of the matrices for peak operations
    array: int  # bytes of the arrays for bandwidth
    large: int  # bytes, minimum of an array that exceeds the cache
    rank: int  # of LoRAs
    steps: int  # per request
    rounds: int
    many: int  # requests over which memory must stay flat
    compiler: str  # backend of torch.compile
    lead: float  # seconds of load before a window
    window: float  # seconds in which a server's pictures are counted


def full_size(device: torch.device) -> Setting:
    """Returns the published model sizes, in float16; the transformer bench sets another dtype."""
    made = kinds()
    parts = usual().full_size
    return Setting(
        device,
        torch.float16,
        parts.network,
        parts.vae,
        parts.texts,
        parts.hints,
        {kind: made[kind].published for kind in playing("full size")},
        (128, 96, 64),
        product=8192,
        array=1 << 30,
        large=64_000_000,
        rank=64,
        steps=20,
        rounds=5,
        many=200,
        compiler="inductor",
        lead=3.0,
        window=15.0,
    )
