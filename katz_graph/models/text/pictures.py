"""Finds the vision tower of a text encoder, and the rows of a picture that it sees. Never imports
torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    Encoding,
    MergedComponent,
    Picture,
    Prompt,
    SeenPicture,
    TextLayout,
)
from katz_graph.models.configuration import config, config_value
from katz_graph.models.loading.contents import contents_of
from katz_graph.models.text.kinds import SEEING, TOWERS, Sight, called, kind_of
from katz_graph.models.text.recipe import prompts

if TYPE_CHECKING:
    from katz_graph.ir.values import PictureRows

MERGED = 2  # patches along a side of a merged patch, unless configured
# of a picture, as the processors of the published models resize it
LEAST_PIXELS, MOST_PIXELS = 56 * 56, 16384 * 28 * 28


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture in a text, of rows x columns merged patches."""

    rows: int
    columns: int
    caption: str  # text before it
    words: tuple[str, str, str]  # before, in place of, and after it
    seen: PictureRows | None = None  # None if only lengths are asked

    @property
    def length(self) -> int:
        return self.rows * self.columns


def seen_pictures(encoding: Encoding) -> tuple[SeenPicture, ...]:
    """Returns the pictures of an encoding as its text encoders see them, each once."""
    return tuple(
        dict.fromkeys(
            SeenPicture(tower_of(encoder.encoder), picture)
            for prompt in prompts(encoding)
            if prompt.pictures
            for encoder in prompt.clip.encoders
            if kind_of(encoder.encoder).sight
            for picture in prompt.pictures
        )
    )


def shown(prompt: Prompt, number: int) -> tuple[Shown, ...]:
    """Returns the pictures of a prompt for its text encoder of this number."""
    encoder = prompt.clip.encoders[number].encoder
    sight = kind_of(encoder).sight
    if not (prompt.pictures and sight):
        return ()
    tower, captions = tower_of(encoder), prompt.captions or ("",) * len(prompt.pictures)
    return tuple(
        Shown(*grid(tower, picture), caption, sight.words)
        for picture, caption in zip(prompt.pictures, captions, strict=True)
    )


def shown_with(
    prompt: Prompt, rows: Mapping[SeenPicture, PictureRows]
) -> dict[int, tuple[Shown, ...]]:
    """Returns the pictures of a prompt with their rows, by number of the text encoder."""
    return {
        number: tuple(
            replace(one, seen=rows[SeenPicture(tower_of(encoder.encoder), picture)])
            for one, picture in zip(there, prompt.pictures, strict=True)
        )
        for number, encoder in enumerate(prompt.clip.encoders)
        if (there := shown(prompt, number))
    }


def texts_around(text: str, layout: TextLayout, pictures: Sequence[Shown]) -> list[str]:
    """Returns the text in its chat template as the texts before, between and after the pictures,
    which come before the text. Words for a picture in the text stay text. Only a template that the
    prompt brings has its own places for pictures. Raises InputError if these are not as many.
    """
    captioned = any(one.caption for one in pictures)
    if layout.opening and text.startswith(layout.opening) and not captioned:
        if not pictures:
            return [text]
        slot = pictures[0].words[1]
        if (places := text.count(slot)) != len(pictures):
            raise InputError(
                f"a prompt with its own chat template has {places} times {slot}, the place of a "
                f"picture, expected {len(pictures)}"
            )
        return text.split(slot)
    before, _, after = layout.template.partition("{}")
    found = []
    for picture in pictures:
        found.append(f"{before}{picture.caption}{picture.words[0]}")
        before = picture.words[2]
    return [*found, f"{before}{text}{after}"]


def check_sees(clip: ClipRecipe) -> None:
    """Raises InputError unless one of the text encoders sees pictures, and has its vision tower."""
    seeing = [one.encoder for one in clip.encoders if kind_of(one.encoder).sight]
    if not seeing:
        first = clip.encoders[0].encoder
        titles = " or ".join(kind.title for kind in SEEING)
        raise InputError(
            f"{first.folder}: {called(first)} sees no pictures: unlink them, or load {titles}"
        )
    for encoder in seeing:
        tower_of(encoder)


@lru_cache(maxsize=64)
def tower_of(encoder: Component) -> Component:
    """Returns the vision tower in a text encoder's files. Raises InputError if they lack it."""
    if isinstance(encoder, MergedComponent):  # merges leave the tower of the first as it is
        return tower_of(encoder.sources[0][0])
    kind, values = kind_of(encoder), config(encoder).get("vision_config")
    assert kind.sight is not None  # callers ask only encoders that see
    names = [name for file in encoder.weight_files for name in contents_of(file).shapes]
    before = encoder.prefix.partition("model.")[0]  # of all parts of a checkpoint's text encoder
    for prefix in kind.sight.prefixes:
        if values and any(name.startswith(before + prefix) for name in names):
            whole = {**values, "architectures": [kind.sight.tower.model]}
            return replace(
                encoder, configuration=json.dumps(whole, sort_keys=True), prefix=before + prefix
            )
    raise InputError(
        f"{encoder.folder}: a {kind.title} without its vision tower ({kind.sight.prefixes[0]}*), "
        "so it sees no pictures: unlink them, or load a file with it"
    )


def sight_of(tower: Component) -> Sight:
    """Returns how the text encoder of a vision tower sees pictures."""
    sight = TOWERS[config(tower)["architectures"][0]].sight
    assert sight is not None  # of all kinds in TOWERS
    return sight


def grid(tower: Component, picture: Picture) -> tuple[int, int]:
    """Returns the rows and columns of merged patches of a picture [1, H, W, C]. Its sides are
    rounded to whole merged patches; very small and very large pictures are resized, as by the
    processors of the published models.
    """
    height, width = picture.pixels.shape[1:3]
    unit = merged_patch(tower)
    rows, columns = round(height / unit), round(width / unit)
    if rows * columns * unit**2 > MOST_PIXELS:
        ratio = math.sqrt(MOST_PIXELS / (height * width)) / unit
        return max(1, math.floor(height * ratio)), max(1, math.floor(width * ratio))
    if rows * columns * unit**2 < LEAST_PIXELS:
        ratio = math.sqrt(LEAST_PIXELS / (height * width)) / unit
        return math.ceil(height * ratio), math.ceil(width * ratio)
    return rows, columns


def merged_patch(tower: Component) -> int:
    """Returns the side of a merged patch in pixels."""
    side = int(config_value(tower, "patch_size", int, sight_of(tower).patch))
    return side * int(config_value(tower, "spatial_merge_size", int, MERGED))
