"""Describes how to call diffusers' HunyuanDiT pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffusers import EulerDiscreteScheduler

from katz_graph.models.families.shared.stock import Stock

if TYPE_CHECKING:
    from torch import Tensor


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    return {"latents": noise, "guidance_scale": guidance, "use_resolution_binning": False}


def euler(pipeline: Any) -> float:
    """Replaces DDPM's scheduler by Euler's and returns the factor of the first noise. Euler starts
    from noise of the highest level alone; a KSampler adds it to a unit-variance picture.
    """
    taken = EulerDiscreteScheduler.from_config(
        pipeline.scheduler.config, timestep_spacing="linspace"
    )
    pipeline.scheduler = taken
    return float((1 + taken.init_noise_sigma**-2) ** 0.5)


STOCK = Stock(arguments, schedule="normal", euler=euler)
