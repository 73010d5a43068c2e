"""Resizes, turns, crops, mixes and composites latents. Sizes and positions are in pixels of the
picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE
from katz_graph.node import Node, Widget
from katz_graph.node.knobs import TURNS, Crop, Flip, Rotation, ScaleFactor, Share, WholeCells
from katz_graph.node.wires import Latent, Mask

if TYPE_CHECKING:
    from torch import Tensor

MIN_SIDE_PIXELS = 64  # smallest side after a resize or crop
cells = DEFAULT_LATENT_SPACE.cells

Method = Literal["nearest-exact", "bilinear", "area", "bicubic", "bislerp"]
Amount = Annotated[int, Field(ge=1, le=16384)]
CropSide = Annotated[int, Field(ge=64, le=16384), Widget(step=8)]


class LatentUpscale(Node, category="latent", title="Upscale Latent"):
    """Resizes a latent. A side of 0 keeps the proportions."""

    upscale_method: Method = "nearest-exact"
    width: WholeCells = 512
    height: WholeCells = 512
    crop: Crop = "disabled"

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import scaled

        if not (self.width or self.height):
            return samples
        high, wide = samples["samples"].shape[-2:]
        width = max(
            MIN_SIDE_PIXELS, self.width or round(wide * max(MIN_SIDE_PIXELS, self.height) / high)
        )
        height = max(
            MIN_SIDE_PIXELS, self.height or round(high * max(MIN_SIDE_PIXELS, self.width) / wide)
        )
        return scaled(samples, cells(width), cells(height), self.upscale_method, self.crop)


class LatentUpscaleBy(Node, category="latent", title="Upscale Latent By"):
    """Resizes a latent by a factor."""

    upscale_method: Method = "nearest-exact"
    scale_by: ScaleFactor = 1.5

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import scaled

        high, wide = samples["samples"].shape[-2:]
        return scaled(
            samples,
            max(1, round(wide * self.scale_by)),
            max(1, round(high * self.scale_by)),
            self.upscale_method,
        )


class LatentRotate(Node, category="latent/transform"):
    """Turns a latent clockwise."""

    rotation: Rotation = "none"

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import spatial

        return spatial(samples, lambda planes: planes.rot90(TURNS[self.rotation], (-1, -2)))


class LatentFlip(Node, category="latent/transform"):
    """Mirrors a latent."""

    flip_method: Flip = "x-axis: vertically"

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import spatial

        return spatial(
            samples, lambda planes: planes.flip(-2 if self.flip_method.startswith("x") else -1)
        )


class LatentCrop(Node, category="latent/transform"):
    """Crops a latent to a window, as far as the window lies inside."""

    width: CropSide = 512
    height: CropSide = 512
    x: WholeCells = 0
    y: WholeCells = 0

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import crop

        high, wide = samples["samples"].shape[-2:]
        smallest = cells(MIN_SIDE_PIXELS)
        x = min(cells(self.x), max(0, wide - smallest))
        y = min(cells(self.y), max(0, high - smallest))
        return crop(samples, x, y, cells(self.width), cells(self.height))


class LatentCut(Node, category="latent/advanced"):
    """Cuts a part of a latent: `amount` columns (x), rows (y) or frames (t) from `index` on, which
    counts from the end if it is negative. Both are limited to the latent's size. A latent without
    frames has one.
    """

    dim: Literal["x", "y", "t"] = "x"
    index: Annotated[int, Field(ge=-16384, le=16384)] = 0
    amount: Amount = 1

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import changed

        whole = samples["samples"]
        if (axis := _axis(whole, self.dim)) is None:
            return samples
        size = whole.shape[axis]
        index = max(min(self.index, size - 1), -size)
        amount = min(self.amount, -index if index < 0 else size - index)
        return changed(samples, whole.narrow(axis, index % size, amount))


class LatentCutToBatch(Node, category="latent/advanced"):
    """Cuts a latent into slices of columns (x), rows (y) or frames (t), which become samples of the
    batch, in order. Drops the remainder.
    """

    dim: Literal["t", "x", "y"] = "t"
    slice_size: Amount = 1

    def run(self, samples: Latent) -> Latent:
        import torch

        from katz_graph.picture.latents import changed

        whole = samples["samples"]
        if (axis := _axis(whole, self.dim)) is None:
            return samples
        side = min(self.slice_size, whole.shape[axis])
        cut = whole.narrow(axis, 0, whole.shape[axis] // side * side)
        slices = torch.unflatten(cut, axis, (-1, side)).movedim(axis - 1, 1).flatten(0, 1)
        return changed(samples, slices)


def _axis(latent: Tensor, name: str) -> int | None:
    """Returns the axis of columns (x), rows (y) or frames (t), from the end; None without one."""
    axis = {"x": -1, "y": -2, "t": -3}[name]
    return axis if latent.ndim + axis >= 2 else None  # batch and channels are first


class LatentAdd(Node, category="latent/advanced"):
    """Adds two latents, the second scaled to the first's size."""

    def run(self, samples1: Latent, samples2: Latent) -> Latent:
        from katz_graph.picture.latents import changed, like

        return changed(samples1, samples1["samples"] + like(samples1["samples"], samples2))


class LatentSubtract(Node, category="latent/advanced"):
    """Subtracts the second latent, scaled to the first's size, from the first."""

    def run(self, samples1: Latent, samples2: Latent) -> Latent:
        from katz_graph.picture.latents import changed, like

        return changed(samples1, samples1["samples"] - like(samples1["samples"], samples2))


class LatentMultiply(Node, category="latent/advanced"):
    """Multiplies a latent by a number."""

    multiplier: Annotated[float, Field(ge=-10.0, le=10.0), Widget(step=0.01)] = 1.0

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import changed

        return changed(samples, samples["samples"] * self.multiplier)


class LatentInterpolate(Node, category="latent/advanced"):
    """Interpolates between two latents, separately for directions and lengths of the channel
    vectors. 1 gives the first.
    """

    ratio: Share = 1.0

    def run(self, samples1: Latent, samples2: Latent) -> Latent:
        from torch.nn.functional import normalize

        from katz_graph.picture.latents import changed, like

        first = samples1["samples"]
        second = like(first, samples2)
        direction = normalize(
            normalize(first, dim=1) * self.ratio + normalize(second, dim=1) * (1 - self.ratio),
            dim=1,
        )
        length = first.norm(dim=1, keepdim=True) * self.ratio + second.norm(dim=1, keepdim=True) * (
            1 - self.ratio
        )
        return changed(samples1, direction * length)


class LatentBlend(Node, category="latent"):
    """Mixes two latents linearly. 1 gives the first."""

    blend_factor: Share = 0.5

    def run(self, samples1: Latent, samples2: Latent) -> Latent:
        from katz_graph.picture.latents import changed, like

        second = like(samples1["samples"], samples2, "bicubic")
        return changed(
            samples1, samples1["samples"] * self.blend_factor + second * (1 - self.blend_factor)
        )


class LatentComposite(Node, category="latent"):
    """Pastes one latent over another at (x, y), with feathered borders."""

    x: WholeCells = 0
    y: WholeCells = 0
    feather: WholeCells = 0

    def run(self, samples_to: Latent, samples_from: Latent) -> Latent:
        from katz_graph.picture.compose import feathered, paste
        from katz_graph.picture.latents import changed, check_channels

        below, above = samples_to["samples"], samples_from["samples"]
        check_channels(below, above)
        x, y, feather = cells(self.x), cells(self.y), cells(self.feather)
        high, wide = below.shape[-2:]
        above = above[..., : max(0, high - y), : max(0, wide - x)]
        mask = feathered(above, x, y, feather, high, wide) if feather and above.numel() else None
        return changed(samples_to, paste(below, above, x, y, mask))


class LatentCompositeMasked(Node, category="latent"):
    """Pastes one latent over another at (x, y), where the mask is 1."""

    x: WholeCells = 0
    y: WholeCells = 0
    resize_source: bool = False

    def run(self, destination: Latent, source: Latent, mask: Mask | None = None) -> Latent:
        from katz_graph.picture.compose import paste
        from katz_graph.picture.latents import changed, check_channels

        check_channels(destination["samples"], source["samples"])
        place = cells(self.x), cells(self.y)
        return changed(
            destination,
            paste(destination["samples"], source["samples"], *place, mask, self.resize_source),
        )
