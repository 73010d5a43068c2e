"""Pictures: from and to files, edges, sizes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from katz_graph.context import Context
from katz_graph.node import FileChoice, Node, Widget
from katz_graph.wires import Image, Mask

Threshold = Annotated[float, Field(ge=0.01, le=0.99), Widget(step=0.01)]
Side = Annotated[int, Field(ge=0, le=16384)]


class LoadImage(Node, category="image"):
    """A picture from the input folder, and the inverse of its transparency as a mask."""

    image: Annotated[str, FileChoice("input"), Widget(upload=True)]

    def fingerprint(self, context: Context) -> Any:
        from katz_graph.models.identity import content_hash

        return content_hash(context.folders.resolve("input", self.image))

    def run(self, context: Context) -> tuple[Image, Mask]:
        from katz_graph.images import load_image

        return load_image(context.folders.resolve("input", self.image))


class SaveImage(Node, category="image", output=True):
    """Write PNG files with the workflow inside. The prefix may hold a subfolder, and %year%, %month%, %day%, %width%, %height%."""

    filename_prefix: str = "ComfyUI"

    def run(self, images: Image, context: Context) -> None:
        from katz_graph.images import save_images

        for path in save_images(images, context.output_directory, self.filename_prefix, context.metadata):
            context.wrote(path)


class PreviewImage(Node, category="image", output=True):
    """Write PNG files to a folder of temporary pictures."""

    def run(self, images: Image, context: Context) -> None:
        from katz_graph.images import save_images

        for path in save_images(images, context.output_directory / "temp", "preview", context.metadata):
            context.wrote(path)


class Canny(Node, category="image/preprocessors"):
    """Edges of a picture, white on black (Canny 1986)."""

    low_threshold: Threshold = 0.4
    high_threshold: Threshold = 0.8

    def run(self, image: Image) -> Image:
        from katz_graph.canny import canny

        return canny(image, self.low_threshold, self.high_threshold).unsqueeze(-1).expand(-1, -1, -1, 3).contiguous()


class ImageScale(Node, category="image/upscaling", title="Upscale Image"):
    """Change the size of a picture. A side of 0 keeps the proportions."""

    upscale_method: Literal["nearest-exact", "bilinear", "area", "bicubic", "lanczos"] = "nearest-exact"
    width: Side = 512
    height: Side = 512
    crop: Literal["disabled", "center"] = "disabled"

    def run(self, image: Image) -> Image:
        from katz_graph.images import resize

        height, width = image.shape[1:3]
        if not (self.width or self.height):
            return image
        wide = self.width or max(1, round(width * self.height / height))
        high = self.height or max(1, round(height * self.width / width))
        return resize(image, wide, high, self.upscale_method, self.crop)
