"""Splits a VAE's work into parts that fit into memory, by counted sizes: the whole batch, one image
at a time, or tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor, cat, split

from katz_graph.core.recipe import Component, Tile, VaeRecipe
from katz_graph.models.configuration import config
from katz_graph.models.costs.peaks import stage_peak
from katz_graph.models.stages import Stage
from katz_graph.models.vae.kinds import kind_of, picture_channels, space_of

TILES = (Tile(512, 64), Tile(256, 64), Tile(128, 32))
VALUE_BYTES = 4  # of a pixel's channel, in float32
# whole images in addition to the VAE's memory: sums, weights, the result and the input
COPIES = 4
# multiple of the widest layer at full size: if that fits, no exact count is needed
UPPER_BOUND_FACTOR = 8


@dataclass(frozen=True, slots=True)
class Parts:
    """Describes a part: `pictures` images at a time, each whole (`tile` is None) or in tiles."""

    pictures: int
    tile: Tile | None

    def note(self, batch: int, asked: Tile | None) -> str | None:
        """Returns a note for the user if the parts differ from the request; tiles change the result
        slightly.
        """
        if self.tile != asked:
            return "the whole picture does not fit into memory, so it was processed in tiles"
        if self.pictures < batch:
            return "the pictures do not fit into memory together, so they were processed one by one"
        return None


def possible(batch: int, height: int, width: int, asked: Tile | None) -> Iterator[Parts]:
    """Yields parts for images of this size in pixels, from most memory to least. If `asked`, yields
    only these tiles.
    """
    yield Parts(batch, asked)
    if batch > 1:
        yield Parts(1, asked)
    if asked is None:
        yield from (Parts(1, tile) for tile in TILES if tile.side < max(height, width))


def needed(
    part: Component,
    stage: Stage,
    parts: Parts,
    batch: int,
    height: int,
    width: int,
    value_bytes: int,
) -> float:
    """Returns the bytes for computing these parts, for images of this size in pixels."""
    side = max(height, width) if parts.tile is None else parts.tile.side
    computed = _peak(
        part, stage.name, parts.pictures, min(side, height), min(side, width), value_bytes
    )
    return computed + _copies(part, batch, height, width)


def surely_enough(
    part: Component, parts: Parts, batch: int, height: int, width: int, value_bytes: int
) -> float:
    """Returns an upper bound of `needed`, without counting."""
    side = max(height, width) if parts.tile is None else parts.tile.side
    widest = kind_of(part).widest(config(part))
    at_once = parts.pictures * min(side, height) * min(side, width)
    computed = float(UPPER_BOUND_FACTOR * widest * value_bytes * at_once)
    return computed + _copies(part, batch, height, width)


def _copies(part: Component, batch: int, height: int, width: int) -> int:
    return COPIES * VALUE_BYTES * picture_channels(VaeRecipe(part)) * batch * height * width


@lru_cache(maxsize=256)
def _peak(
    part: Component, stage: str, pictures: int, height: int, width: int, value_bytes: int
) -> float:
    factor = space_of(part).factor
    return stage_peak(
        config(part), stage, pictures, -(-height // factor), -(-width // factor), value_bytes
    )


def in_parts(work: Callable[[Tensor], Tensor], whole: Tensor, pictures: int) -> Tensor:
    """Processes `pictures` images of the batch at a time; returns the result on the CPU."""
    return cat([work(some).cpu() for some in split(whole, pictures)])
