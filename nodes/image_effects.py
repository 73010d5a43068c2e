"""Changes the pixels of pictures in place: inverts, blends, blurs, sharpens, lays over one another,
reduces to edges.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from katz_graph.errors import InputError
from katz_graph.knobs import Pixels, Share
from katz_graph.node import Node, Widget
from katz_graph.wires import Image, Mask

Threshold = Annotated[float, Field(ge=0.01, le=0.99), Widget(step=0.01)]
Radius = Annotated[int, Field(ge=1, le=31)]
Sigma = Annotated[float, Field(ge=0.1, le=10.0), Widget(step=0.1)]


class ImageInvert(Node, category="image", title="Invert Image"):
    """The negative of a picture."""

    def run(self, image: Image) -> Image:
        return 1.0 - image


class ImageBlend(Node, category="image/postprocessing"):
    """Mix two pictures in one of the usual modes; the second is cropped and scaled to the first."""

    blend_factor: Share = 0.5
    blend_mode: Literal["normal", "multiply", "screen", "overlay", "soft_light", "difference"] = "normal"

    def run(self, image1: Image, image2: Image) -> Image:
        from katz_graph.files.images import resize
        from katz_graph.picture.batch import like_channels, repeated
        from katz_graph.picture.filters import BLENDS

        batch = max(len(image1), len(image2))
        first, second = repeated(image1, batch), repeated(like_channels(image2, image1.shape[-1]), batch).to(image1)
        height, width = first.shape[1:3]
        if second.shape[1:3] != first.shape[1:3]:
            second = resize(second, width, height, "bicubic", "center")
        blended = BLENDS[self.blend_mode](first, second)
        return (first * (1 - self.blend_factor) + blended * self.blend_factor).clamp(0, 1)


class ImageBlur(Node, category="image/postprocessing"):
    """Blur a picture with a Gaussian. Sigma is in units of the radius."""

    blur_radius: Radius = 1
    sigma: Sigma = 1.0

    def run(self, image: Image) -> Image:
        from katz_graph.picture.filters import blur

        return blur(image, self.blur_radius, self.sigma)


class ImageSharpen(Node, category="image/postprocessing"):
    """Add what a Gaussian blur would take away. Sigma is in units of the radius."""

    sharpen_radius: Radius = 1
    sigma: Sigma = 1.0
    alpha: Annotated[float, Field(ge=0.0, le=5.0), Widget(step=0.01)] = 1.0

    def run(self, image: Image) -> Image:
        from katz_graph.picture.filters import sharpen

        return sharpen(image, self.sharpen_radius, self.sigma, self.alpha) if self.alpha else image


class ImageCompositeMasked(Node, category="image"):
    """One picture laid over another at (x, y), where the mask is 1."""

    x: Pixels = 0
    y: Pixels = 0
    resize_source: bool = False

    def run(self, destination: Image, source: Image, mask: Mask | None = None) -> Image:
        from katz_graph.picture.batch import like_channels
        from katz_graph.picture.compose import paste

        above = like_channels(source, destination.shape[-1]).movedim(-1, 1)
        return paste(destination.movedim(-1, 1), above, self.x, self.y, mask, self.resize_source).movedim(1, -1)


class Canny(Node, category="image/preprocessors"):
    """Edges of a picture, white on black (Canny 1986)."""

    low_threshold: Threshold = 0.4
    high_threshold: Threshold = 0.8

    def run(self, image: Image) -> Image:
        from katz_graph.picture.filters import canny

        if self.low_threshold > self.high_threshold:
            raise InputError(f"low_threshold {self.low_threshold} must not be above high_threshold {self.high_threshold}; swap them")
        return canny(image, self.low_threshold, self.high_threshold).unsqueeze(-1).expand(-1, -1, -1, 3).contiguous()
