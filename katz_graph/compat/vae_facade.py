"""A VAE as packs see it. Latents are its own, not multiplied by its scaling factor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from katz_graph.compat.current import current_context
from katz_graph.compat.missing import refuse
from katz_graph.recipe import VaeRecipe

if TYPE_CHECKING:
    from torch import Tensor


class VaeFacade:
    """The VAE of a recipe, run by the engine. Tiles are not needed to get the same picture, so none are made."""

    def __init__(self, recipe: VaeRecipe) -> None:
        self.recipe = recipe

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """[B, H, W, C] in 0..1 -> [B, C, h, w]; a size that is no multiple of the factor is cropped around the centre."""
        context = current_context("encoding a picture")
        return context.engine.encode_image(self.recipe, self._cropped(pixel_samples), context)

    def decode(self, samples_in: Tensor, *_: Any, **__: Any) -> Tensor:
        """[B, C, h, w] -> float32 [B, H, W, 3] in 0..1"""
        context = current_context("decoding a latent")
        return context.engine.decode_latent(self.recipe, samples_in, context)

    def encode_tiled(self, pixel_samples: Tensor, **_: Any) -> Tensor:
        return self.encode(pixel_samples)

    def decode_tiled(self, samples: Tensor, **_: Any) -> Tensor:
        return self.decode(samples)

    @property
    def downscale_ratio(self) -> int:
        """Pixels per latent, along one side."""
        from katz_graph.models.family import vae_shape

        return vae_shape(self.recipe).factor

    upscale_ratio = downscale_ratio

    @property
    def latent_channels(self) -> int:
        from katz_graph.models.family import vae_shape

        return vae_shape(self.recipe).latent_channels

    def spacial_compression_encode(self) -> int:
        return self.downscale_ratio

    def spacial_compression_decode(self) -> int:
        return self.downscale_ratio

    def vae_encode_crop_pixels(self, pixels: Tensor) -> Tensor:
        return self._cropped(pixels)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        refuse(f"comfy.sd.VAE.{name}")

    def _cropped(self, pixels: Tensor) -> Tensor:
        factor = self.downscale_ratio
        height, width = pixels.shape[1] // factor * factor, pixels.shape[2] // factor * factor
        top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
        return pixels[:, top : top + height, left : left + width, :3]
