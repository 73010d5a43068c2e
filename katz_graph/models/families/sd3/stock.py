"""Describes how to call diffusers' Stable Diffusion 3 pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from katz_graph.models.families.shared.stock import Stock

if TYPE_CHECKING:
    from torch import Tensor


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    return {"latents": noise, "guidance_scale": guidance, "max_sequence_length": 77}


STOCK = Stock(arguments, schedule="normal")
