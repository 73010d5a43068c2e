"""Joins, repeats, cuts and rebatches pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from katz_graph.knobs import BatchSize
from katz_graph.node import Node
from katz_graph.wires import Image, Socket

if TYPE_CHECKING:
    from torch import Tensor

Images = Annotated["list[Tensor]", Socket("IMAGE")]


class ImageBatch(Node, category="image/batch"):
    """Two pictures (or batches) as one batch, the second cropped and scaled to the size of the
    first.
    """

    def run(self, image1: Image, image2: Image) -> Image:
        import torch

        from katz_graph.files.images import resize
        from katz_graph.picture.batch import same_channels

        first, second = same_channels(image1, image2)
        height, width = first.shape[1:3]
        if second.shape[1:3] != first.shape[1:3]:
            second = resize(second, width, height, "bilinear", "center")
        return torch.cat([first, second.to(first)])


class RepeatImageBatch(Node, category="image/batch"):
    """The whole batch several times over."""

    amount: BatchSize = 1

    def run(self, image: Image) -> Image:
        return image.repeat(self.amount, 1, 1, 1)


class ImageFromBatch(Node, category="image/batch"):
    """Some pictures of a batch. A negative index counts from the end."""

    batch_index: Annotated[int, Field(ge=-16384, le=16384)] = 0
    length: BatchSize = 1

    def run(self, image: Image) -> Image:
        from katz_graph.picture.batch import window

        return image[window(len(image), self.batch_index, self.length)]


class RebatchImages(Node, category="image/batch", takes_lists=True, gives_lists=(True,)):
    """A list of pictures in batches of another size. A picture of another width, height or kind
    begins a new batch.
    """

    batch_size: BatchSize = 1

    def run(self, images: Images) -> Images:
        import torch

        groups: list[list[Tensor]] = []
        for picture in (batch[number : number + 1] for batch in images for number in range(len(batch))):
            if not groups or len(groups[-1]) == self.batch_size or picture.shape != groups[-1][0].shape:
                groups.append([])
            groups[-1].append(picture)
        return [torch.cat(group) for group in groups]
