"""Presents a VAE to packs. Latents are not multiplied by the scaling factor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from katz_graph.comfy.missing import refuse
from katz_graph.core.recipe import Tile, VaeRecipe
from katz_graph.models.vae.kinds import latent_space, picture_channels
from katz_graph.node.scope import current_context

if TYPE_CHECKING:
    from torch import Tensor


class VaeFacade:
    """Represents the VAE of a recipe, which the engine runs."""

    def __init__(self, recipe: VaeRecipe) -> None:
        self.recipe = recipe

    def encode(self, pixel_samples: Tensor) -> Tensor:
        """Encodes [B, H, W, C] in 0..1 to [B, C, h, w]; centre-crops to multiples of the factor."""
        return self._encode(pixel_samples, None)

    def decode(self, samples_in: Tensor, *_: Any, **__: Any) -> Tensor:
        """Decodes [B, C, h, w] to float32 [B, H, W, 3 or 4] in 0..1."""
        return self._decode(samples_in, None)

    def encode_tiled(
        self,
        pixel_samples: Tensor,
        tile_x: int | None = None,
        tile_y: int | None = None,
        overlap: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Encodes in square tiles; tile and overlap are in pixels."""
        return self._encode(pixel_samples, _tile(tile_x, tile_y, overlap, 1))

    def decode_tiled(
        self,
        samples: Tensor,
        tile_x: int | None = None,
        tile_y: int | None = None,
        overlap: int | None = None,
        **_: Any,
    ) -> Tensor:
        """Decodes in square tiles; tile and overlap are in latent cells."""
        return self._decode(samples, _tile(tile_x, tile_y, overlap, self.downscale_ratio))

    @property
    def downscale_ratio(self) -> int:
        """Returns the pixels per latent cell, along one side."""
        return latent_space(self.recipe).factor

    upscale_ratio = downscale_ratio

    @property
    def latent_channels(self) -> int:
        return latent_space(self.recipe).channels

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

    def _encode(self, pixels: Tensor, tile: Tile | None) -> Tensor:
        context = current_context("encoding a picture")
        return context.engine.encode_image(self.recipe, self._cropped(pixels), context, tile)

    def _decode(self, samples: Tensor, tile: Tile | None) -> Tensor:
        context = current_context("decoding a latent")
        return context.engine.decode_latent(self.recipe, samples, context, tile)

    def _cropped(self, pixels: Tensor) -> Tensor:
        factor = self.downscale_ratio
        height, width = pixels.shape[1] // factor * factor, pixels.shape[2] // factor * factor
        top, left = (pixels.shape[1] - height) // 2, (pixels.shape[2] - width) // 2
        return pixels[:, top : top + height, left : left + width, : picture_channels(self.recipe)]


def _tile(width: int | None, height: int | None, overlap: int | None, pixels: int) -> Tile:
    """Builds a tile from the shorter given side, with an overlap of at most a quarter. `pixels`:
    pixels per unit of the arguments.
    """
    usual = Tile()
    side = min((one * pixels for one in (width, height) if one), default=usual.side)
    return Tile(side, min(usual.overlap if overlap is None else overlap * pixels, side // 4))
