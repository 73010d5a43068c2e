"""Describes how to call diffusers' FLUX.1 pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffusers import FluxPipeline

from katz_graph.models.families.shared.stock import Stock

if TYPE_CHECKING:
    from torch import Tensor


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
    told=3.5,
    unpacked=unpacked,
    editing={
        "fill": ("FluxFillPipeline", {"in_channels": 384, "out_channels": 64}),
        "control": ("FluxControlPipeline", {"in_channels": 128, "out_channels": 64}),
        "reference": ("FluxKontextPipeline", {}),
    },
)
