"""Scales, crops, turns and extends pictures, and edits their pixels: inverts, blends, blurs,
sharpens, composites and detects edges.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.node import Node, Widget
from katz_graph.node.knobs import (
    TURNS,
    Crop,
    Flip,
    Pixels,
    Rotation,
    ScaleFactor,
    Share,
    Side,
    WholeCells,
)
from katz_graph.node.wires import Image, Mask

if TYPE_CHECKING:
    from torch import Tensor

MEGAPIXEL = 1024 * 1024

Method = Literal["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]
Threshold = Annotated[float, Field(ge=0.01, le=0.99), Widget(step=0.01)]
Radius = Annotated[int, Field(ge=1, le=31)]
Sigma = Annotated[float, Field(ge=0.1, le=10.0), Widget(step=0.1)]


def proportional(image: Tensor, width: int, height: int) -> tuple[int, int]:
    """Returns the target width and height for pictures [B, H, W, ...]. One side of 0 keeps the
    proportions; two keep the size.
    """
    high, wide = image.shape[1:3]
    if not (width or height):
        return wide, high
    return (
        width or max(1, round(wide * height / high)),
        height or max(1, round(high * width / wide)),
    )


class ImageScale(Node, category="image/upscaling", title="Upscale Image"):
    """Resizes a picture. A side of 0 keeps the proportions."""

    upscale_method: Method = "nearest-exact"
    width: Pixels = 512
    height: Pixels = 512
    crop: Crop = "disabled"

    def run(self, image: Image) -> Image:
        from katz_graph.files.images import resize

        if not (self.width or self.height):
            return image
        wide, high = proportional(image, self.width, self.height)
        return resize(image, wide, high, self.upscale_method, self.crop)


class ImageScaleBy(Node, category="image/upscaling", title="Upscale Image By"):
    """Resizes a picture by a factor."""

    upscale_method: Method = "nearest-exact"
    scale_by: ScaleFactor = 1.0

    def run(self, image: Image) -> Image:
        from katz_graph.files.images import resize

        height, width = image.shape[1:3]
        return resize(
            image,
            max(1, round(width * self.scale_by)),
            max(1, round(height * self.scale_by)),
            self.upscale_method,
        )


class ImageScaleToTotalPixels(Node, category="image/upscaling"):
    """Scales a picture to a number of megapixels (of 1024 x 1024), each side rounded to a multiple
    of `resolution_steps`.
    """

    upscale_method: Method = "nearest-exact"
    megapixels: Annotated[float, Field(ge=0.01, le=16.0), Widget(step=0.01)] = 1.0
    resolution_steps: Annotated[int, Field(ge=1, le=256)] = 1

    def run(self, image: Image) -> Image:
        from katz_graph.files.images import resize

        height, width = image.shape[1:3]
        factor = math.sqrt(int(self.megapixels * MEGAPIXEL) / (width * height))
        wide, high = (
            max(1, round(side * factor / self.resolution_steps)) * self.resolution_steps
            for side in (width, height)
        )
        return resize(image, wide, high, self.upscale_method)


class ImageScaleToMaxDimension(Node, category="image/upscaling"):
    """Scales a picture so that its longer side has `largest_size` pixels."""

    upscale_method: Literal["area", "lanczos", "bilinear", "nearest-exact", "bicubic"] = "area"
    largest_size: Pixels = 512

    def run(self, image: Image) -> Image:
        from katz_graph.files.images import resize

        if not self.largest_size:
            raise InputError("largest_size: got 0, expected at least 1 pixel")
        height, width = image.shape[1:3]
        factor = self.largest_size / max(width, height)
        return resize(
            image,
            max(1, round(width * factor)),
            max(1, round(height * factor)),
            self.upscale_method,
        )


class ImageCrop(Node, category="image/transform"):
    """Crops a picture to a window, as far as the window lies inside."""

    width: Side = 512
    height: Side = 512
    x: Pixels = 0
    y: Pixels = 0

    def run(self, image: Image) -> Image:
        height, width = image.shape[1:3]
        x, y = min(self.x, width - 1), min(self.y, height - 1)
        return image[:, y : y + self.height, x : x + self.width]


class CenterCropImages(Node, category="image/transform"):
    """Crops pictures around the centre. A smaller side does not change."""

    width: Annotated[int, Field(ge=1, le=8192)] = 512
    height: Annotated[int, Field(ge=1, le=8192)] = 512

    def run(self, images: Image) -> Image:
        height, width = images.shape[1:3]
        x, y = max(0, (width - self.width) // 2), max(0, (height - self.height) // 2)
        return images[:, y : y + self.height, x : x + self.width]


class ImageFlip(Node, category="image/transform"):
    """Mirrors a picture."""

    flip_method: Flip = "x-axis: vertically"

    def run(self, image: Image) -> Image:
        return image.flip(1 if self.flip_method.startswith("x") else 2)


class ImageRotate(Node, category="image/transform"):
    """Turns a picture clockwise."""

    rotation: Rotation = "none"

    def run(self, image: Image) -> Image:
        return image.rot90(TURNS[self.rotation], (2, 1))


class ImagePadForOutpaint(Node, category="image", title="Pad Image for Outpainting"):
    """Adds a grey border to a picture. The mask marks the border, fading into the picture."""

    left: WholeCells = 0
    top: WholeCells = 0
    right: WholeCells = 0
    bottom: WholeCells = 0
    feathering: Pixels = 40

    def run(self, image: Image) -> tuple[Image, Mask]:
        from katz_graph.picture.mask import pad_for_outpaint

        return pad_for_outpaint(
            image, self.left, self.top, self.right, self.bottom, self.feathering
        )


class ImageStitch(Node, category="image/transform"):
    """Places a second picture next to, below or above the first, scaled to match or centred, with a
    gap.
    """

    direction: Literal["right", "down", "left", "up"] = "right"
    match_image_size: bool = True
    spacing_width: Annotated[int, Field(ge=0, le=1024), Widget(step=2)] = 0
    spacing_color: Literal["white", "black", "red", "green", "blue"] = "white"

    def run(self, image1: Image, image2: Image | None = None) -> Image:
        from katz_graph.picture.batch import stitch

        if image2 is None:
            return image1
        first, second = (
            (image1, image2) if self.direction in ("right", "down") else (image2, image1)
        )
        if self.match_image_size:
            first, second = self._matched(first, image1), self._matched(second, image1)
        gap = self.spacing_width + self.spacing_width % 2
        return stitch(first, second, sideways=self._sideways, gap=gap, colour=self.spacing_color)

    @property
    def _sideways(self) -> bool:
        return self.direction in ("right", "left")

    def _matched(self, image: Tensor, other: Tensor) -> Tensor:
        """Resizes a picture to the other's height if they are side by side, else to its width."""
        from katz_graph.files.images import resize

        height, width = image.shape[1:3]
        if self._sideways:
            size = max(1, int(other.shape[1] * width / height)), other.shape[1]
        else:
            size = other.shape[2], max(1, int(other.shape[2] * height / width))
        return image if size == (width, height) else resize(image, *size, "lanczos")


class ImageInvert(Node, category="image", title="Invert Image"):
    """Inverts the colours of a picture."""

    def run(self, image: Image) -> Image:
        return 1.0 - image


class ImageBlend(Node, category="image/postprocessing"):
    """Blends two pictures; the second is cropped and scaled to the size of the first."""

    blend_factor: Share = 0.5
    blend_mode: Literal["normal", "multiply", "screen", "overlay", "soft_light", "difference"] = (
        "normal"
    )

    def run(self, image1: Image, image2: Image) -> Image:
        from katz_graph.files.images import resize
        from katz_graph.picture.batch import like_channels, repeated
        from katz_graph.picture.filters import BLENDS

        batch = max(len(image1), len(image2))
        first = repeated(image1, batch)
        second = repeated(like_channels(image2, image1.shape[-1]), batch).to(image1)
        height, width = first.shape[1:3]
        if second.shape[1:3] != first.shape[1:3]:
            second = resize(second, width, height, "bicubic", "center")
        blended = BLENDS[self.blend_mode](first, second)
        return (first * (1 - self.blend_factor) + blended * self.blend_factor).clamp(0, 1)


class ImageBlur(Node, category="image/postprocessing"):
    """Blurs a picture with a Gaussian. Sigma is in units of the radius."""

    blur_radius: Radius = 1
    sigma: Sigma = 1.0

    def run(self, image: Image) -> Image:
        from katz_graph.picture.filters import blur

        return blur(image, self.blur_radius, self.sigma)


class ImageSharpen(Node, category="image/postprocessing"):
    """Sharpens a picture by its difference to a Gaussian blur. Sigma is in units of the radius."""

    sharpen_radius: Radius = 1
    sigma: Sigma = 1.0
    alpha: Annotated[float, Field(ge=0.0, le=5.0), Widget(step=0.01)] = 1.0

    def run(self, image: Image) -> Image:
        from katz_graph.picture.filters import sharpen

        return sharpen(image, self.sharpen_radius, self.sigma, self.alpha) if self.alpha else image


class MarigoldV2PostProcess(Node, category="image/postprocessing"):
    """Converts a decoded prediction of Marigold V2 to a picture: depth with near surfaces bright,
    normals of unit length, or albedo from linear values to sRGB.
    """

    prediction: Literal["depth", "normals", "albedo"] = "depth"

    def run(self, image: Image) -> Image:
        from katz_graph.picture.filters import as_srgb, near_bright, unit_normals

        match self.prediction:
            case "depth":
                return near_bright(image)
            case "normals":
                return unit_normals(image)
            case "albedo":
                return as_srgb(image)


class ImageCompositeMasked(Node, category="image"):
    """Pastes one picture over another at (x, y), where the mask is 1."""

    x: Pixels = 0
    y: Pixels = 0
    resize_source: bool = False

    def run(self, destination: Image, source: Image, mask: Mask | None = None) -> Image:
        from katz_graph.picture.batch import like_channels
        from katz_graph.picture.compose import paste

        above = like_channels(source, destination.shape[-1]).movedim(-1, 1)
        return paste(
            destination.movedim(-1, 1), above, self.x, self.y, mask, self.resize_source
        ).movedim(1, -1)


class Canny(Node, category="image/preprocessors"):
    """Finds the edges of a picture, white on black (Canny 1986)."""

    low_threshold: Threshold = 0.4
    high_threshold: Threshold = 0.8

    def run(self, image: Image) -> Image:
        from katz_graph.picture.filters import canny

        if self.low_threshold > self.high_threshold:
            raise InputError(
                f"low_threshold {self.low_threshold} must not be above high_threshold "
                f"{self.high_threshold}; swap them"
            )
        return (
            canny(image, self.low_threshold, self.high_threshold)
            .unsqueeze(-1)
            .expand(-1, -1, -1, 3)
            .contiguous()
        )
