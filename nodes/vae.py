"""Converts pictures to latents and back with a VAE, and makes the conditionings of models that read
an encoded picture in addition to the noisy latent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, cast

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import Concatenated, Picture, Tile
from katz_graph.models.vae.kinds import latent_space, picture_channels
from katz_graph.node import Node, Widget
from katz_graph.node.types import Context
from katz_graph.node.wires import Conditioning, Image, Latent, Mask, Vae
from katz_graph.nodes.conditioning import mapped

if TYPE_CHECKING:
    from torch import Tensor

TileSide = Annotated[int, Field(ge=64, le=4096), Widget(step=64)]
Overlap = Annotated[int, Field(ge=0, le=4096), Widget(step=32)]
Frames = Annotated[int, Field(ge=8, le=4096)]
FramesOverlap = Annotated[int, Field(ge=4, le=4096)]


class VAEDecode(Node, category="latent"):
    """Decodes a latent to a picture, in tiles if memory is short."""

    def run(self, samples: Latent, vae: Vae, context: Context) -> Image:
        return context.engine.decode_latent(vae, samples["samples"], context)


class VAEDecodeTiled(Node, category="experimental", title="VAE Decode (Tiled)"):
    """Decodes a latent in tiles, which blend linearly over at most a quarter of a tile. Ignores
    temporal inputs.
    """

    tile_size: TileSide = 512
    overlap: Overlap = 64
    temporal_size: Frames = 64
    temporal_overlap: FramesOverlap = 8

    def run(self, samples: Latent, vae: Vae, context: Context) -> Image:
        return context.engine.decode_latent(
            vae, samples["samples"], context, _tile(self.tile_size, self.overlap)
        )


class VAEEncode(Node, category="latent"):
    """Encodes a picture, centre-cropped to whole latent cells, to the mean of the posterior."""

    def run(self, pixels: Image, vae: Vae, context: Context) -> Latent:
        return {
            "samples": context.engine.encode_image(
                vae, whole_cells(self, _shown(pixels, vae), vae, context), context
            )
        }


class VAEEncodeTiled(Node, category="experimental", title="VAE Encode (Tiled)"):
    """Encodes a picture in tiles, which blend linearly over at most a quarter of a tile. Ignores
    temporal inputs.
    """

    tile_size: TileSide = 512
    overlap: Overlap = 64
    temporal_size: Frames = 64
    temporal_overlap: FramesOverlap = 8

    def run(self, pixels: Image, vae: Vae, context: Context) -> Latent:
        tile = _tile(self.tile_size, self.overlap)
        return {
            "samples": context.engine.encode_image(
                vae, whole_cells(self, _shown(pixels, vae), vae, context), context, tile
            )
        }


class VAEEncodeForInpaint(Node, category="latent/inpaint", title="VAE Encode (for Inpainting)"):
    """Encodes a picture with grey where the mask is 1. The sampler repaints this area and
    `grow_mask_by` pixels around it.
    """

    grow_mask_by: Annotated[int, Field(ge=0, le=64)] = 6

    def run(self, pixels: Image, vae: Vae, mask: Mask, context: Context) -> Latent:
        from katz_graph.picture.mask import greyed

        picture, covering = with_mask(self, pixels, mask, vae, context)
        samples = context.engine.encode_image(vae, greyed(picture, covering), context)
        repainted = _grown(covering, self.grow_mask_by).round()
        return cast(LatentSamples, {"samples": samples, "noise_mask": repainted.unsqueeze(1)})


class InpaintModelConditioning(
    Node, category="conditioning/inpaint", names=("positive", "negative", "latent")
):
    """Encodes the inputs of an inpainting model: the mask, and the picture with grey in its place.
    With `noise_mask` only the mask is repainted.
    """

    noise_mask: bool = True

    def run(
        self,
        positive: Conditioning,
        negative: Conditioning,
        vae: Vae,
        pixels: Image,
        mask: Mask,
        context: Context,
    ) -> tuple[Conditioning, Conditioning, Latent]:
        from katz_graph.picture.mask import greyed

        picture, covering = with_mask(self, pixels, mask, vae, context)
        shown = context.engine.encode_image(vae, greyed(picture, covering), context)
        seen = Concatenated(Picture.of(shown), Picture.of(covering))
        latent: dict[str, Tensor] = {"samples": context.engine.encode_image(vae, picture, context)}
        if self.noise_mask:
            latent["noise_mask"] = covering.unsqueeze(1)
        sides = [
            mapped(side, lambda entry: replace(entry, concatenated=seen))
            for side in (positive, negative)
        ]
        return sides[0], sides[1], cast(LatentSamples, latent)


class InstructPixToPixConditioning(
    Node, category="conditioning/instructpix2pix", names=("positive", "negative", "latent")
):
    """Encodes the picture input of a model for editing by instruction (Brooks et al. 2023)."""

    def run(
        self,
        positive: Conditioning,
        negative: Conditioning,
        vae: Vae,
        pixels: Image,
        context: Context,
    ) -> tuple[Conditioning, Conditioning, Latent]:
        shown = context.engine.encode_image(
            vae, whole_cells(self, pixels[..., :3], vae, context), context
        )
        seen = Concatenated(Picture.of(shown))
        sides = [
            mapped(side, lambda entry: replace(entry, concatenated=seen))
            for side in (positive, negative)
        ]
        return sides[0], sides[1], {"samples": shown * 0.0}


def _shown(pixels: Image, vae: Vae) -> Tensor:
    """Returns the channels that the VAE reads: colours, and alpha if it has alpha."""
    return pixels[..., : picture_channels(vae)]


def _tile(side: int, overlap: int) -> Tile:
    return Tile(side, min(overlap, side // 4) if side < overlap * 4 else overlap)


def with_mask(
    node: Node, pixels: Image, mask: Mask, vae: Vae, context: Context
) -> tuple[Tensor, Tensor]:
    """Returns the colours [B, H, W, 3] and the mask [b, H, W] of the same size, cropped to whole
    cells.
    """
    from katz_graph.files.images import resize

    height, width = pixels.shape[1:3]
    covering = resize(mask.reshape(-1, *mask.shape[-2:], 1), width, height, "bilinear")
    return whole_cells(node, pixels[..., :3], vae, context), whole_cells(
        node, covering, vae, context
    )[..., 0]


def whole_cells(node: Node, picture: Tensor, vae: Vae, context: Context | None = None) -> Tensor:
    """Crops a picture [B, H, W, C] around its centre to whole cells of the VAE's latents, and warns
    a context. Raises InputError if the picture is smaller than one cell.
    """
    name, cell, (height, width) = type(node).__name__, latent_space(vae).factor, picture.shape[1:3]
    if height < cell or width < cell:
        raise InputError(
            f"{name}: the picture is {width}x{height}, expected at least {cell}x{cell}"
        )
    high, wide = height - height % cell, width - width % cell
    if context is not None and (high, wide) != (height, width):
        context.warn(
            f"{name}: {width}x{height} is not a multiple of {cell}; cropping to {wide}x{high}"
        )
    top, left = height % cell // 2, width % cell // 2
    return picture[:, top : top + high, left : left + wide]


def _grown(mask: Tensor, by: int) -> Tensor:
    """Grows a rounded mask [B, H, W]: sets pixels to 1 if the surrounding square of `by` pixels
    contains part of the mask; an even `by` shifts the mask by half a pixel.
    """
    import torch

    if not by:
        return mask
    kernel = torch.ones(1, 1, by, by)
    padding = -(-(by - 1) // 2)
    covered = torch.nn.functional.conv2d(mask.round().unsqueeze(1), kernel, padding=padding)[:, 0]
    return covered[:, : mask.shape[1], : mask.shape[2]].clamp(0, 1)
