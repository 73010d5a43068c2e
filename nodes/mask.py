"""Creates, crops, grows and combines masks. 1 marks the area to change."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.node import Node
from katz_graph.node.knobs import Colour, Pixels, Share, Side
from katz_graph.node.types import Context
from katz_graph.node.ui_results import announced, place_folder, with_ui
from katz_graph.node.wires import Image, Mask


class MaskToImage(Node, category="mask"):
    """Converts a mask to a grey picture."""

    def run(self, mask: Mask) -> Image:
        return mask.reshape(-1, *mask.shape[-2:], 1).expand(-1, -1, -1, 3).contiguous()


class ImageToMask(Node, category="mask"):
    """Converts one channel of a picture to a mask."""

    channel: Literal["red", "green", "blue", "alpha"] = "red"

    def run(self, image: Image) -> Mask:
        position = ("red", "green", "blue", "alpha").index(self.channel)
        if position >= image.shape[-1]:
            raise InputError(
                f"the picture has {image.shape[-1]} channels and no {self.channel}; LoadImage "
                "outputs transparency as its MASK"
            )
        return image[..., position]


class ImageColorToMask(Node, category="mask"):
    """Marks the pixels of exactly this colour (0xRRGGBB) with 1."""

    color: Colour = 0

    def run(self, image: Image) -> Mask:
        wanted = image.new_tensor([self.color >> 16, self.color >> 8 & 0xFF, self.color & 0xFF])
        pixels = (image[..., :3].clamp(0, 1) * 255).round()
        return (pixels == wanted).all(dim=-1).to(image)


class SolidMask(Node, category="mask"):
    """Creates a mask of one value."""

    value: Share = 1.0
    width: Side = 512
    height: Side = 512

    def run(self) -> Mask:
        import torch

        return torch.full((1, self.height, self.width), self.value)


class InvertMask(Node, category="mask"):
    """Inverts a mask: 1 minus the mask."""

    def run(self, mask: Mask) -> Mask:
        return 1.0 - mask


class CropMask(Node, category="mask"):
    """Crops a mask to a window, as far as the window lies inside."""

    x: Pixels = 0
    y: Pixels = 0
    width: Side = 512
    height: Side = 512

    def run(self, mask: Mask) -> Mask:
        from katz_graph.picture.batch import cut

        return cut(
            mask.reshape(-1, *mask.shape[-2:]), self.x, self.y, self.width, self.height, "mask"
        )


class MaskComposite(Node, category="mask"):
    """Combines one mask with another at (x, y)."""

    x: Pixels = 0
    y: Pixels = 0
    operation: Literal["multiply", "add", "subtract", "and", "or", "xor"] = "multiply"

    def run(self, destination: Mask, source: Mask) -> Mask:
        from katz_graph.picture.mask import combine

        below, above = (mask.reshape(-1, *mask.shape[-2:]) for mask in (destination, source))
        return combine(below, above, self.x, self.y, self.operation)


class FeatherMask(Node, category="mask"):
    """Fades a mask to 0 towards its borders."""

    left: Pixels = 0
    top: Pixels = 0
    right: Pixels = 0
    bottom: Pixels = 0

    def run(self, mask: Mask) -> Mask:
        from katz_graph.picture.mask import feather

        return feather(
            mask.reshape(-1, *mask.shape[-2:]), self.left, self.top, self.right, self.bottom
        )


class GrowMask(Node, category="mask"):
    """Grows a mask by a number of pixels, or shrinks it with a negative number; tapered corners
    grow less.
    """

    expand: Annotated[int, Field(ge=-16384, le=16384)] = 0
    tapered_corners: bool = True

    def run(self, mask: Mask) -> Mask:
        from katz_graph.picture.mask import grow

        return grow(mask, self.expand, self.tapered_corners)


class ThresholdMask(Node, category="mask"):
    """Sets a mask to 1 where it is above a value."""

    value: Share = 0.5

    def run(self, mask: Mask) -> Mask:
        return (mask > self.value).to(mask)


class MaskPreview(Node, category="mask", output=True):
    """Writes a mask as grey PNG files to a folder of temporary pictures."""

    def run(self, mask: Mask, context: Context) -> Mask:
        from katz_graph.files.images import save_images

        pictures = mask.reshape(-1, *mask.shape[-2:], 1)
        paths = save_images(pictures, place_folder(context, "temp"), "preview", context.metadata)
        return with_ui(mask, images=announced(context, "temp", paths))
