"""Splits a VAE's work into parts that fit into memory, by counts: all pictures at once, one after
the other, or in tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor, cat, split

from katz_graph.core.recipe import Component, Tile
from katz_graph.models.configuration import config
from katz_graph.models.costs.peaks import stage_peak
from katz_graph.models.stages import Stage

TILES = (Tile(512, 64), Tile(256, 64), Tile(128, 32))
PICTURE_BYTES = 12  # a pixel in float32
# of the whole picture, besides what the VAE works on: sums, weights, the result and what was sent
COPIES = 4
GENEROUS = 8  # times the widest layer for every pixel: what fits even then needs no exact count


@dataclass(frozen=True, slots=True)
class Parts:
    """Describes a part: so many `pictures` at once, each whole (`tile` None) or in tiles."""

    pictures: int
    tile: Tile | None

    def note(self, batch: int, asked: Tile | None) -> str | None:
        """Returns what the user should know of it: tiles that nobody asked for are not quite the
        whole's picture.
        """
        if self.tile != asked:
            return "the whole picture does not fit into memory, so it was done in tiles"
        if self.pictures < batch:
            return "the pictures do not fit into memory together, so they were done one by one"
        return None


def possible(batch: int, height: int, width: int, asked: Tile | None) -> Iterator[Parts]:
    """Yields parts for pictures of so many pixels, from what takes most memory to what takes least;
    `asked`: the only tiles that the user wants.
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
    """Counts the bytes for computing, for pictures of so many pixels."""
    side = max(height, width) if parts.tile is None else parts.tile.side
    computed = _peak(
        part, stage.name, parts.pictures, min(side, height), min(side, width), value_bytes
    )
    return computed + COPIES * PICTURE_BYTES * batch * height * width


def surely_enough(
    part: Component, parts: Parts, batch: int, height: int, width: int, value_bytes: int
) -> float:
    """Returns more bytes than that, without counting."""
    side = max(height, width) if parts.tile is None else parts.tile.side
    widest = max(config(part)["block_out_channels"])
    at_once = parts.pictures * min(side, height) * min(side, width)
    return float(
        GENEROUS * widest * value_bytes * at_once + COPIES * PICTURE_BYTES * batch * height * width
    )


@lru_cache(maxsize=256)
def _peak(
    part: Component, stage: str, pictures: int, height: int, width: int, value_bytes: int
) -> float:
    values = config(part)
    factor = 2 ** (len(values["block_out_channels"]) - 1)
    return stage_peak(
        values, stage, pictures, -(-height // factor), -(-width // factor), value_bytes
    )


def in_parts(work: Callable[[Tensor], Tensor], whole: Tensor, pictures: int) -> Tensor:
    """Computes so many of the batch at once; returns the result on the CPU."""
    return cat([work(some).cpu() for some in split(whole, pictures)])
