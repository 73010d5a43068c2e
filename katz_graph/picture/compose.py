"""Pastes one batch of planes [B, C, H, W] over another through a mask or with feathered borders,
and processes planes in tiles with blended overlaps. Works on pictures and latents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from katz_graph.picture.batch import each_frame, repeated
from katz_graph.sampling.areas import fit_mask


def paste(
    below: Tensor, above: Tensor, x: int, y: int, mask: Tensor | None = None, fill: bool = False
) -> Tensor:
    """Pastes `above` at column x, row y of `below`, clipped to it, with the mask [b, h, w] as
    opacity.

    The mask is resized to `above`; with `fill`, `above` is first resized to `below`. The batch has
    the length of `below`.
    """
    if fill:
        above = each_frame(
            above, lambda planes: interpolate(planes, size=below.shape[-2:], mode="bilinear")
        )
    above = repeated(above.to(below), len(below))
    weights = above.new_ones(1, 1, *above.shape[-2:]) if mask is None else fit_mask(mask, above)
    high, wide = below.shape[-2:]
    rows, columns = max(0, min(above.shape[-2], high - y)), max(0, min(above.shape[-1], wide - x))
    result = below.clone()
    window = result[..., y : y + rows, x : x + columns]
    above, weights = above[..., :rows, :columns], weights[..., :rows, :columns]
    window.copy_(above * weights + window * (1.0 - weights))
    return result


def feathered(planes: Tensor, x: int, y: int, feather: int, high: int, wide: int) -> Tensor:
    """Makes a mask [1, h, w] for planes at (x, y) of a picture of `high` by `wide`, with ramps of
    `feather` cells at borders inside the picture.
    """
    rows, columns = planes.shape[-2:]
    down = border_ramp(rows, feather if y else 0, feather if y + rows < high else 0)
    right = border_ramp(columns, feather if x else 0, feather if x + columns < wide else 0)
    return (down[:, None] * right[None, :]).unsqueeze(0).to(planes)


def border_ramp(length: int, start: int, end: int) -> Tensor:
    """Makes a ramp [length] that is 1 inside; the first `start` values rise as 1/start, 2/start ...
    1 and the last `end` values fall likewise.
    """
    ramp = torch.ones(length)
    start, end = min(start, length), min(end, length)
    ramp[:start] *= torch.arange(1, start + 1) / max(start, 1)
    ramp[length - end :] *= torch.arange(end, 0, -1) / max(end, 1)
    return ramp


def in_tiles(
    picture: Tensor,
    scale: int | Fraction,
    side: int,
    overlap: int,
    change: Callable[[Tensor], Tensor],
) -> Tensor:
    """Maps [B, C, H, W] to float32 [B, C', H·scale, W·scale]. `change` gets windows of at most
    `side` that overlap by `overlap`.

    Peak memory of `change` does not depend on the picture's size. Overlaps are blended linearly.
    Sides and overlap times the scale must be integers.
    """
    high, wide = picture.shape[-2:]
    total = weights = None
    for top, bottom, down in _spans(high, scale, side, overlap):
        for left, right, across in _spans(wide, scale, side, overlap):
            changed = change(picture[..., top:bottom, left:right]).float()
            if total is None or weights is None:
                total = changed.new_zeros(*changed.shape[:2], int(high * scale), int(wide * scale))
                weights = changed.new_zeros(1, 1, *total.shape[-2:])
            weight = (down[:, None] * across[None, :]).to(changed.device)
            window = (
                ...,
                slice(int(top * scale), int(bottom * scale)),
                slice(int(left * scale), int(right * scale)),
            )
            total[window] += changed * weight
            weights[window] += weight
    assert total is not None and weights is not None  # at least one window exists
    return total / weights


def _spans(
    length: int, scale: int | Fraction, side: int, overlap: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Yields start, end and the weights of output pixels, for each tile along one side."""
    starts = [0] if length <= side else [*range(0, length - side, side - overlap), length - side]
    for start in starts:
        end = min(length, start + side)
        ramp = int(overlap * scale)
        yield (
            start,
            end,
            border_ramp(
                int((end - start) * scale), ramp if start else 0, ramp if end < length else 0
            ),
        )
