"""Resizes pictures and masks in one of several modes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.node import Node, ShownFor, Widget
from katz_graph.node.knobs import Crop, Pixels, ScaleFactor
from katz_graph.node.wires import Socket
from katz_graph.nodes.image_edit import MEGAPIXEL, Method, proportional

if TYPE_CHECKING:
    from torch import Tensor

Way = Literal[
    "scale dimensions",
    "scale by multiplier",
    "scale longer dimension",
    "scale shorter dimension",
    "scale width",
    "scale height",
    "scale total pixels",
    "match size",
    "scale to multiple",
]


def _for(*ways: Way) -> ShownFor:
    return ShownFor("resize_type", ways)


PictureOrMask = Annotated["Tensor", Socket("IMAGE,MASK")]
Match = Annotated["Tensor", Socket("IMAGE,MASK"), _for("match size")]


class ResizeImageMaskNode(Node, category="image/transform", title="Resize Image/Mask"):
    """Resizes a picture or a mask: to width and height in pixels (0 keeps the proportions), by a
    factor, to one side, to a number of megapixels (of 1024 x 1024), to another one's size, or by
    cropping to multiples of a number.
    """

    resize_type: Way = "scale dimensions"
    width: Annotated[Pixels, _for("scale dimensions", "scale width")] = 512
    height: Annotated[Pixels, _for("scale dimensions", "scale height")] = 512
    multiplier: Annotated[ScaleFactor, _for("scale by multiplier")] = 1.0
    longer_size: Annotated[Pixels, _for("scale longer dimension")] = 512
    shorter_size: Annotated[Pixels, _for("scale shorter dimension")] = 512
    megapixels: Annotated[
        float, Field(ge=0.01, le=16.0), Widget(step=0.01), _for("scale total pixels")
    ] = 1.0
    multiple: Annotated[int, Field(ge=1, le=16384), _for("scale to multiple")] = 8
    crop: Annotated[Crop, _for("scale dimensions", "match size")] = "center"
    scale_method: Method = "area"

    def run(self, input: PictureOrMask, match: Match | None = None) -> PictureOrMask:
        from katz_graph.files.images import resize

        pictures = input if input.ndim == 4 else input[..., None]
        wide, high = self._size(pictures, match)
        crop = {
            "scale dimensions": self.crop,
            "match size": self.crop,
            "scale to multiple": "center",
        }.get(self.resize_type, "disabled")
        made = resize(pictures, wide, high, self.scale_method, crop)
        return made if input.ndim == 4 else made[..., 0]

    def _size(self, pictures: Tensor, other: Tensor | None) -> tuple[int, int]:
        height, width = pictures.shape[1:3]
        match self.resize_type:
            case "scale dimensions":
                return proportional(pictures, self.width, self.height)
            case "scale width":
                return proportional(pictures, self.width, 0)
            case "scale height":
                return proportional(pictures, 0, self.height)
            case "scale by multiplier":
                factor = self.multiplier
            case "scale longer dimension":
                factor = self.longer_size / max(width, height)
            case "scale shorter dimension":
                factor = self.shorter_size / min(width, height)
            case "scale total pixels":
                factor = math.sqrt(int(self.megapixels * MEGAPIXEL) / (width * height))
            case "match size":
                if other is None:
                    raise InputError(
                        "resize_type 'match size' needs a picture or a mask at resize_type.match"
                    )
                return int(other.shape[2]), int(other.shape[1])
            case _:
                if min(width, height) < self.multiple:
                    raise InputError(
                        f"a picture of {width}x{height} pixels has no side that is a multiple of "
                        f"{self.multiple}"
                    )
                return width - width % self.multiple, height - height % self.multiple
        return max(1, round(width * factor)), max(1, round(height * factor))
