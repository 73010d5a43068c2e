"""Replaces the engine when a graph is only planned: compiles the regions to be sampled, and loads
no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import Encoding, Tile, UpscaleModelRecipe, VaeRecipe
from katz_graph.ir.device import Device
from katz_graph.ir.region import Region
from katz_graph.ir.values import TextEncoding
from katz_graph.models.configuration import latent_space
from katz_graph.models.text.kinds import pooled_text_width, text_width
from katz_graph.models.text.recipe import length, prompts
from katz_graph.models.text.tokens import prompt_length
from katz_graph.node.types import Context

Made = TypeVar("Made")


@dataclass(slots=True)
class PlanningEngine(Generic[Made]):
    """Implements `katz_graph.node.types.Engine` with zeros of the right shape as model results.
    `programs` holds the compiled samplers in the order of their execution.
    """

    device: Device
    compile: Callable[[Region], Made]
    programs: list[Made] = field(default_factory=list)
    allowed: frozenset[str] = frozenset()

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        self.programs.append(self.compile(region))
        latent: LatentSamples = region.begin.inputs["latent_image"]
        return latent, latent

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        clip = next(prompts(encoding)).clip
        pooled = pooled_text_width(clip)
        hidden = torch.zeros(1, length(encoding, prompt_length), text_width(clip))
        return TextEncoding(hidden, None if pooled is None else torch.zeros(1, pooled))

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        space = latent_space(vae)
        return pixels.new_zeros(len(pixels), space.channels, *map(space.cells, pixels.shape[1:3]))

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        return samples.new_zeros(len(samples), *map(latent_space(vae).pixels, samples.shape[2:]), 3)

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        batch, channels, height, width = picture.shape
        return picture.new_zeros(
            batch, channels, height * model.shape.scale, width * model.shape.scale
        )
