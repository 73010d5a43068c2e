"""Latents: empty ones, to and from pictures, and masks on them."""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import Field

from katz_graph.context import Context
from katz_graph.errors import InputError
from katz_graph.node import Node, Widget
from katz_graph.wires import Image, Latent, LatentSamples, Mask, Vae

Side = Annotated[int, Field(ge=16, le=16384), Widget(step=8)]
CELL = 8  # pixels of a picture along one side of a latent cell


class EmptyLatentImage(Node, category="latent"):
    """An all-zero latent, to start from noise alone. Sizes are floored to multiples of 8."""

    width: Side = 512
    height: Side = 512
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 1

    def run(self, context: Context) -> Latent:
        import torch

        if self.width % CELL or self.height % CELL:
            floored = f"{self.width - self.width % CELL}x{self.height - self.height % CELL}"
            context.warn(f"EmptyLatentImage: {self.width}x{self.height} is not a multiple of {CELL}; using {floored}")
        return {"samples": torch.zeros(self.batch_size, 4, self.height // CELL, self.width // CELL)}


class VAEDecode(Node, category="latent"):
    """Latent to picture."""

    def run(self, samples: Latent, vae: Vae, context: Context) -> Image:
        return context.engine.decode_latent(vae, samples["samples"], context)


class VAEEncode(Node, category="latent"):
    """Picture to latent: the mean of the posterior. A size that is not a multiple of 8 is cropped around the centre."""

    def run(self, pixels: Image, vae: Vae, context: Context) -> Latent:
        height, width = pixels.shape[1:3]
        if height < CELL or width < CELL:
            raise InputError(f"VAEEncode: the picture is {width}x{height}, expected at least {CELL}x{CELL}")
        if height % CELL or width % CELL:
            context.warn(
                f"VAEEncode: {width}x{height} is not a multiple of {CELL}; cropping to {width - width % CELL}x{height - height % CELL}"
            )
        top, left = height % CELL // 2, width % CELL // 2
        cropped = pixels[:, top : top + height - height % CELL, left : left + width - width % CELL, :3]
        return {"samples": context.engine.encode_image(vae, cropped, context)}


class SetLatentNoiseMask(Node, category="latent/inpaint"):
    """Repaint only where the mask is 1."""

    def run(self, samples: Latent, mask: Mask) -> Latent:
        return cast(LatentSamples, {**samples, "noise_mask": mask.reshape(-1, 1, *mask.shape[-2:])})
