"""Joins any number of pictures, masks or latents into one batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from katz_graph.core.latent_space import LatentSamples
from katz_graph.node import Grows, Node
from katz_graph.node.wires import Image, Latent, Mask, Socket

if TYPE_CHECKING:
    from torch import Tensor

MAX_BATCH_INPUTS = 50
Images = Annotated[
    Mapping[str, "Tensor"],
    Socket("IMAGE"),
    Grows.numbered("image", MAX_BATCH_INPUTS),
]
Masks = Annotated[
    Mapping[str, "Tensor"],
    Socket("MASK"),
    Grows.numbered("mask", MAX_BATCH_INPUTS),
]
Latents = Annotated[
    Mapping[str, LatentSamples],
    Socket("LATENT"),
    Grows.numbered("latent", MAX_BATCH_INPUTS),
]


class BatchImagesNode(Node, category="image/batch", title="Batch Images"):
    """Joins pictures (or batches) into one batch, cropped and scaled to the size of the first."""

    def run(self, images: Images) -> Image:
        import torch

        from katz_graph.files.images import resize
        from katz_graph.picture.batch import like_channels

        first, *_ = pictures = list(images.values())
        height, width = first.shape[1:3]
        channels = max(one.shape[-1] for one in pictures)
        return torch.cat(
            [
                (
                    one
                    if one.shape[1:3] == first.shape[1:3]
                    else resize(one, width, height, "bilinear", "center")
                ).to(first)
                for one in (like_channels(picture, channels) for picture in pictures)
            ]
        )


class BatchMasksNode(Node, category="mask", title="Batch Masks"):
    """Joins masks (or batches) into one batch, cropped and scaled to the size of the first."""

    def run(self, masks: Masks) -> Mask:
        import torch

        from katz_graph.files.images import resize

        first, *_ = all_masks = list(masks.values())
        height, width = first.shape[1:3]
        return torch.cat(
            [
                (
                    one
                    if one.shape[1:3] == first.shape[1:3]
                    else resize(one[..., None], width, height, "bilinear", "center")[..., 0]
                ).to(first)
                for one in all_masks
            ]
        )


class BatchLatentsNode(Node, category="latent/batch", title="Batch Latents"):
    """Joins latents into one batch, scaled to the size of the first. Retains masks and noise."""

    def run(self, latents: Latents) -> Latent:
        from katz_graph.picture.latents import joined, sized_like

        first, *others = latents.values()
        return joined([first, *(sized_like(other, first["samples"]) for other in others)])
