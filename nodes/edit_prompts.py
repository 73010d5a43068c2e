"""Encodes prompts with pictures that the text encoder sees, for models that edit these."""

from __future__ import annotations

import math
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ConditioningEntry, Picture, Prompt, References
from katz_graph.models.text.chat import EDITING
from katz_graph.models.text.pictures import check_sees
from katz_graph.models.text.textual_inversion import identities, with_learned_words
from katz_graph.node import Node
from katz_graph.node.knobs import PromptText
from katz_graph.node.types import Context
from katz_graph.node.wires import Clip, Conditioning, Image, Vae
from katz_graph.nodes.image_edit import MEGAPIXEL
from katz_graph.nodes.vae import whole_cells

CATEGORY = "advanced/conditioning/edit_models"
SEEN_PIXELS = 384 * 384  # of a picture for the text encoder of a model with several pictures
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
