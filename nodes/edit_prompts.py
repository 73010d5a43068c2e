"""Encodes prompts with pictures that the text encoder sees, for models that edit these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, cast

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import ConditioningEntry, Picture, Prompt, References
from katz_graph.models.text.chat import EDITING
from katz_graph.models.text.pictures import LEAST_PIXELS, MOST_PIXELS, check_sees
from katz_graph.models.text.textual_inversion import identities, with_learned_words
from katz_graph.models.vae.kinds import QWEN_IMAGE_21
from katz_graph.node import Grows, Node, Widget
from katz_graph.node.knobs import PromptText
from katz_graph.node.types import Context
from katz_graph.node.wires import Clip, Conditioning, Image, Latent, Socket, Vae
from katz_graph.nodes.image_edit import MEGAPIXEL
from katz_graph.nodes.vae import whole_cells

CATEGORY = "advanced/conditioning/edit_models"
SEEN_PIXELS = 384 * 384  # of a picture for the text encoder of a model with several pictures
WITH_ALPHA = 4  # channels
GRID = 32  # pixels; two cells of a latent, the side of a vision token
MAX_PICTURES = 16
NumberedImages = Annotated[
    Mapping[str, Image],
    Socket("IMAGE"),
    Grows(tuple(f"image_{number}" for number in range(1, MAX_PICTURES + 1)), least=0),
]
CELL = 8  # pixels; sides of its references are multiples


class TextEncodeQwenImageEdit(Node, category=CATEGORY, title="Text Encode Qwen Image Edit"):
    """Encodes a prompt and the picture that it edits, at about 1024 x 1024 pixels. With a VAE, the
    picture is also a reference of the model. Of a batch, the first picture is used.
    """

    prompt: PromptText

    def fingerprint(self, context: Context) -> Any:
        return identities((self.prompt,), context.folders)

    def run(
        self, clip: Clip, context: Context, vae: Vae | None = None, image: Image | None = None
    ) -> Conditioning:
        clip = with_learned_words(clip, (self.prompt,), context.folders, context.warn)
        if image is None:
            return (ConditioningEntry(Prompt(clip, self.prompt)),)
        check_sees(clip)
        first = _first(self, "image", image)
        prompt = Prompt(clip, self.prompt, pictures=(Picture.of(_scaled(first, MEGAPIXEL)),))
        references = _references(self, [first], vae, context)
        return (ConditioningEntry(prompt, references=references),)


class TextEncodeQwenImageEditPlus(
    Node, category=CATEGORY, title="Text Encode Qwen Image Edit Plus"
):
    """Encodes a prompt and the pictures that it names `Picture 1` to `Picture 3`, by input. The
    text encoder sees each at about 384 x 384 pixels. With a VAE, the pictures are also references
    of the model, at about 1024 x 1024 pixels. Of a batch, the first picture is used.
    """

    prompt: PromptText

    def fingerprint(self, context: Context) -> Any:
        return identities((self.prompt,), context.folders)

    def run(
        self,
        clip: Clip,
        context: Context,
        vae: Vae | None = None,
        image1: Image | None = None,
        image2: Image | None = None,
        image3: Image | None = None,
    ) -> Conditioning:
        clip = with_learned_words(clip, (self.prompt,), context.folders, context.warn)
        firsts = {
            number: _first(self, f"image{number}", image)
            for number, image in enumerate((image1, image2, image3), start=1)
            if image is not None
        }
        if firsts:
            check_sees(clip)
        prompt = Prompt(
            clip,
            self.prompt,
            pictures=tuple(Picture.of(_scaled(one, SEEN_PIXELS)) for one in firsts.values()),
            captions=tuple(f"Picture {number}: " for number in firsts),
            template=EDITING,
        )
        references = _references(self, [*firsts.values()], vae, context, CELL)
        return (ConditioningEntry(prompt, references=references),)


class TextEncodeQwenImage21(
    Node,
    category=CATEGORY,
    title="Text Encode Qwen Image 2.1",
    names=("positive", "negative", "latent"),
):
    """Encodes a prompt and a negative prompt with the pictures that they name `image1` and so on,
    and makes an empty latent of the first picture's size. Pictures have about `resolution` squared
    pixels (0: their own) and sides of multiples of 32. With a VAE, they are also references of the
    model. Of a batch, the first picture is used.
    """

    prompt: PromptText
    negative_prompt: PromptText
    resolution: Annotated[int, Field(ge=0, le=4096), Widget(step=GRID)] = 1024

    def fingerprint(self, context: Context) -> Any:
        return identities((self.prompt, self.negative_prompt), context.folders)

    def run(
        self, clip: Clip, context: Context, vae: Vae | None = None, *, images: NumberedImages
    ) -> tuple[Conditioning, Conditioning, Latent]:
        import torch

        names = [f"image_{number}" for number in range(1, len(images) + 1)]
        if missing := [name for name in names if name not in images]:
            last = max(images, key=len)
            raise InputError(
                f"TextEncodeQwenImage21: images.{missing[0]} is not linked, but images.{last} is: "
                "link pictures without gaps, because prompts name them by number"
            )
        pictures = [self._sized(_opaque(self, f"images.{one}", images[one])) for one in names]
        if pictures:
            check_sees(clip)
        references = None
        if vae is not None and pictures:
            latents = (context.engine.encode_image(vae, one, context) for one in pictures)
            references = References(tuple(map(Picture.of, latents)))
        sides = []
        for text in (self.prompt, self.negative_prompt):
            learned = with_learned_words(clip, (text,), context.folders, context.warn)
            prompt = Prompt(
                learned,
                text,
                pictures=tuple(Picture.of(_over_white(one)) for one in pictures),
                captions=tuple(
                    f"{' ' if number > 1 else ''}<image{number}>"
                    for number in range(1, len(pictures) + 1)
                ),
            )
            sides.append((ConditioningEntry(prompt, references=references),))
        space = QWEN_IMAGE_21.latent
        pixels = self.resolution or 1024
        height, width = pictures[0].shape[1:3] if pictures else (pixels, pixels)
        cells = (side // space.factor for side in (height, width))
        latent = {"samples": torch.zeros(1, space.channels, *cells)}
        return sides[0], sides[1], cast(LatentSamples, latent)

    def _sized(self, picture: Image) -> Image:
        """Resizes a picture to sides of multiples of GRID, and to a number of pixels that the text
        encoder does not change.
        """
        from katz_graph.files.images import resize

        height, width = picture.shape[1:3]
        area = self.resolution**2 or height * width
        high, wide = _on_grid(height, width, area)
        if not LEAST_PIXELS <= high * wide <= MOST_PIXELS:
            # three times and a third: rounded sides are inside, too
            area = min(max(area, 3 * LEAST_PIXELS), MOST_PIXELS // 3)
            high, wide = _on_grid(height, width, area)
        return resize(picture, wide, high, "lanczos")


def _on_grid(height: int, width: int, area: int) -> tuple[int, int]:
    """Returns sides of about this area, as multiples of GRID."""
    factor = math.sqrt(area / (height * width)) / GRID
    high, wide = (max(1, round(side * factor)) * GRID for side in (height, width))
    return high, wide


def _opaque(node: Node, name: str, image: Image) -> Image:
    """Returns the first picture of a batch [1, H, W, 3 or 4], with its alpha if it has one."""
    colours = _first(node, name, image)
    if image.shape[-1] != WITH_ALPHA:
        return colours
    return image[:1]


def _over_white(picture: Image) -> Image:
    """Returns the colours of a picture over white."""
    if picture.shape[-1] != WITH_ALPHA:
        return picture
    alpha = picture[..., 3:]
    return picture[..., :3] * alpha + (1.0 - alpha)


def _first(node: Node, name: str, image: Image) -> Image:
    """Returns the colours of the first picture of a batch, [1, H, W, 3]."""
    if 0 in image.shape:
        raise InputError(
            f"{type(node).__name__}: {name} has the shape {list(image.shape)}, expected at least "
            "one picture of at least one pixel"
        )
    colours = image[:1, ..., :3]
    return colours if colours.shape[-1] == 3 else colours[..., :1].expand(-1, -1, -1, 3)


def _scaled(picture: Image, pixels: int, multiple: int = 1) -> Image:
    """Resizes a picture to about a number of pixels, with sides that are multiples."""
    from katz_graph.files.images import resize

    height, width = picture.shape[1:3]
    factor = math.sqrt(pixels / (height * width)) / multiple
    wide, high = (max(1, round(side * factor)) * multiple for side in (width, height))
    return resize(picture, wide, high, "area")


def _references(
    node: Node, pictures: list[Image], vae: Vae | None, context: Context, multiple: int = 1
) -> References | None:
    """Returns the latents of pictures, scaled to sides that are multiples; none without a VAE or
    pictures.
    """
    if vae is None or not pictures:
        return None
    scaled = (_scaled(one, MEGAPIXEL, multiple) for one in pictures)
    cropped = (whole_cells(node, one, vae) for one in scaled)
    latents = (context.engine.encode_image(vae, one, context) for one in cropped)
    return References(tuple(map(Picture.of, latents)))
