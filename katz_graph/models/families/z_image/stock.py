"""Describes how to call diffusers' Z-Image pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from katz_graph.models.families.shared.stock import Stock

if TYPE_CHECKING:
    from torch import Tensor


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    """Passes guidance minus one, because the pipeline adds the difference to the positive
    prediction.
    """
    return {"latents": noise, "guidance_scale": guidance - 1}


STOCK = Stock(arguments)
