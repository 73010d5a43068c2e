"""Reads, writes and creates pictures and their transparency; joins, repeats, crops and rebatches
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from katz_graph.node import FileChoice, Node, ShownFor, Widget
from katz_graph.node.knobs import BatchSize, Colour, Side
from katz_graph.node.types import Context
from katz_graph.node.ui_results import Place, announced, place_folder, with_ui
from katz_graph.node.wires import Image, Mask, Socket

if TYPE_CHECKING:
    from torch import Tensor

PictureFile = Annotated[str, FileChoice("input"), Widget(upload=True)]
Images = Annotated["list[Tensor]", Socket("IMAGE")]


def _content(context: Context, name: str) -> str:
    from katz_graph.models.loading.identity import content_hash

    return content_hash(context.folders.resolve("input", name))


def _saved(images: Image, context: Context, place: Place, prefix: str) -> Image:
    """Writes pictures and returns them unchanged, with their file names for editors."""
    return with_ui(images, images=_written(images, context, place, prefix))


def _written(images: Image, context: Context, place: Place, prefix: str) -> list[dict[str, str]]:
    """Writes pictures and returns their locations in the form that clients use."""
    from katz_graph.files.images import save_images

    paths = save_images(images, place_folder(context, place), prefix, context.metadata)
    return announced(context, place, paths)


class LoadImage(Node, category="image"):
    """Loads a picture from the input folder (all frames of an animation), and its inverted
    transparency as a mask.
    """

    image: PictureFile

    def fingerprint(self, context: Context) -> Any:
        return _content(context, self.image)

    def run(self, context: Context) -> tuple[Image, Mask]:
        from katz_graph.files.images import load_image

        return load_image(context.folders.resolve("input", self.image))


class LoadImageMask(Node, category="mask", title="Load Image (as Mask)"):
    """Loads one channel of a picture from the input folder as a mask; transparency is inverted."""

    image: PictureFile
    channel: Literal["alpha", "red", "green", "blue"] = "alpha"

    def fingerprint(self, context: Context) -> Any:
        return _content(context, self.image)

    def run(self, context: Context) -> Mask:
        from katz_graph.files.images import load_channel

        return load_channel(context.folders.resolve("input", self.image), self.channel)


class SaveImage(Node, category="image", output=True):
    """Writes PNG files with the workflow inside. The prefix may contain a subfolder, and %year%,
    %month%, %day%, %width%, %height%.
    """

    filename_prefix: str = "ComfyUI"

    def run(self, images: Image, context: Context) -> Image:
        return _saved(images, context, "output", self.filename_prefix)


class SaveImageAdvanced(
    SaveImage, category="image", output=True, title="Save Image (Advanced)", names=("images",)
):
    """Writes 8-bit PNG files with the workflow inside, as SaveImage does. Other formats, bit depths
    and colour spaces are not supported.
    """

    format: Literal["png"] = "png"
    bit_depth: Annotated[Literal["8-bit"], ShownFor("format", ("png",))] = "8-bit"
    input_color_space: Annotated[Literal["sRGB"], ShownFor("format", ("png",))] = "sRGB"


class PreviewImage(Node, category="image", output=True):
    """Writes PNG files to a folder of temporary pictures."""

    def run(self, images: Image, context: Context) -> Image:
        return _saved(images, context, "temp", "preview")


class ImageCompare(Node, category="image", output=True):
    """Shows two pictures side by side; writes PNG files to a folder of temporary pictures."""

    def run(
        self, context: Context, image_a: Image | None = None, image_b: Image | None = None
    ) -> None:
        shown = {
            f"{side}_images": []
            if image is None
            else _written(image, context, "temp", f"compare.{side}")
            for side, image in (("a", image_a), ("b", image_b))
        }
        return with_ui(None, **shown)


class SaveImageWebsocket(Node, category="api/image", output=True):
    """Sends PNG files to the client that submitted the run, and writes none."""

    def fingerprint(self, context: Context) -> float:
        """Returns NaN, which equals no value, so that every run sends its pictures."""
        return float("nan")

    def run(self, images: Image, context: Context) -> None:
        from katz_graph.files.images import check_pictures, png

        check_pictures(images)
        for image in images:
            context.deliver(png(image, {}))


class EmptyImage(Node, category="image"):
    """Creates a picture of one colour (0xRRGGBB)."""

    width: Side = 512
    height: Side = 512
    batch_size: BatchSize = 1
    color: Colour = 0

    def run(self) -> Image:
        import torch

        colour = torch.tensor([self.color >> 16, self.color >> 8 & 0xFF, self.color & 0xFF]) / 255
        return colour.repeat(self.batch_size, self.height, self.width, 1)


class GetImageSize(Node, category="image", names=("width", "height", "batch_size")):
    """Outputs width, height and number of pictures."""

    def run(self, image: Image) -> tuple[int, int, int]:
        batch, height, width = image.shape[:3]
        return width, height, batch


class JoinImageWithAlpha(Node, category="mask/compositing"):
    """Adds transparency to a picture: mask 1 is transparent."""

    def run(self, image: Image, alpha: Mask) -> Image:
        import torch

        from katz_graph.files.images import resize
        from katz_graph.picture.batch import like_channels, repeated

        batch = max(len(image), len(alpha))
        height, width = image.shape[1:3]
        opaque = 1.0 - resize(alpha.unsqueeze(-1), width, height, "bilinear")
        return torch.cat(
            [repeated(like_channels(image, 3), batch), repeated(opaque, batch).to(image)], dim=-1
        )


class SplitImageWithAlpha(Node, category="mask/compositing"):
    """Splits a picture into its colours, and its transparency as a mask."""

    def run(self, image: Image) -> tuple[Image, Mask]:
        transparency = (
            1.0 - image[..., 3] if image.shape[-1] > 3 else image.new_zeros(image.shape[:3])
        )
        return image[..., :3], transparency


class ImageBatch(Node, category="image/batch"):
    """Joins two pictures (or batches) into one batch, the second cropped and scaled to the size of
    the first.
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
    """Repeats the whole batch."""

    amount: BatchSize = 1

    def run(self, image: Image) -> Image:
        return image.repeat(self.amount, 1, 1, 1)


class ImageFromBatch(Node, category="image/batch"):
    """Selects pictures of a batch. A negative index counts from the end."""

    batch_index: Annotated[int, Field(ge=-16384, le=16384)] = 0
    length: BatchSize = 1

    def run(self, image: Image) -> Image:
        from katz_graph.picture.batch import window

        return image[window(len(image), self.batch_index, self.length)]


class RebatchImages(Node, category="image/batch", takes_lists=True, gives_lists=(True,)):
    """Regroups a list of pictures into batches of another size. A picture of another width, height
    or channel count begins a new batch.
    """

    batch_size: BatchSize = 1

    def run(self, images: Images) -> Images:
        import torch

        groups: list[list[Tensor]] = []
        for picture in (
            batch[number : number + 1] for batch in images for number in range(len(batch))
        ):
            if (
                not groups
                or len(groups[-1]) == self.batch_size
                or picture.shape != groups[-1][0].shape
            ):
                groups.append([])
            groups[-1].append(picture)
        return [torch.cat(group) for group in groups]
