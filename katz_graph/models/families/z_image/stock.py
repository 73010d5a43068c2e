"""Describes how diffusers' pipeline of Z-Image is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from katz_graph.models.families.shared.stock import Stock

if TYPE_CHECKING:
    from torch import Tensor


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    """Asks for one less of guidance: the pipeline adds the difference to the positive side."""
    return {"latents": noise, "guidance_scale": guidance - 1}


STOCK = Stock(arguments)
