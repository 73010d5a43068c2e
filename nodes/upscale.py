"""Enlarges pictures with a network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from katz_graph.node import FileChoice, Node
from katz_graph.node.types import Context
from katz_graph.node.wires import Image, UpscaleModel

if TYPE_CHECKING:
    from torch import Tensor

TILE = 512  # pixels per side of the first tiles
SMALLEST_TILE = 128  # below this, out of memory is an error
OVERLAP = 32


class UpscaleModelLoader(Node, category="loaders", title="Load Upscale Model"):
    """Loads a network that enlarges pictures: ESRGAN, Real-ESRGAN or Real-ESRGAN compact, from
    models/upscale_models.
    """

    model_name: Annotated[str, FileChoice("upscale_models")]

    def fingerprint(self, context: Context) -> object:
        from katz_graph.models.loading.identity import file_identity

        return file_identity(context.folders.resolve("upscale_models", self.model_name))

    def run(self, context: Context) -> UpscaleModel:
        from katz_graph.upscale.files import upscale_model

        return upscale_model(context.folders.resolve("upscale_models", self.model_name))


class ImageUpscaleWithModel(Node, category="image/upscaling", title="Upscale Image (using Model)"):
    """Enlarges a picture with a network, tile by tile."""

    def run(self, upscale_model: UpscaleModel, image: Image, context: Context) -> Image:
        import torch

        from katz_graph.picture.batch import like_channels

        planes = like_channels(
            image if image.shape[-1] >= 3 else image[..., :1].expand(-1, -1, -1, 3), 3
        ).movedim(-1, 1)
        enlarged = [
            _enlarged(upscale_model, planes[number : number + 1], context)
            for number in range(len(planes))
        ]
        return torch.cat(enlarged).clamp(0, 1).movedim(1, -1)


def _enlarged(model: UpscaleModel, picture: Tensor, context: Context) -> Tensor:
    side = TILE
    while (enlarged := _in_tiles_of(side, model, picture, context)) is None:
        side //= 2
        context.warn(
            f"ImageUpscaleWithModel: the device is out of memory; continuing in tiles of {side} "
            "pixels"
        )
    return enlarged


def _in_tiles_of(
    side: int, model: UpscaleModel, picture: Tensor, context: Context
) -> Tensor | None:
    """Enlarges a picture in tiles. If memory does not suffice, releases the computed tiles and
    returns None if smaller ones may help; raises OutOfMemory at SMALLEST_TILE.
    """
    from katz_graph.core.errors import OutOfMemory
    from katz_graph.picture.compose import in_tiles

    def enlarge(tile: Tensor) -> Tensor:
        context.check_cancelled()
        return context.engine.upscale(model, tile, context)

    try:
        return in_tiles(picture, model.shape.scale, side, OVERLAP, enlarge)
    except OutOfMemory:
        if side <= SMALLEST_TILE:
            raise
        return None
