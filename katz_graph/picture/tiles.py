"""Processes a picture or latent tile by tile, so that its size does not decide how much memory that
takes. Overlaps are blended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from torch import Tensor

from katz_graph.picture.compose import border_ramp


def in_tiles(picture: Tensor, scale: int | Fraction, side: int, overlap: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Maps [B, C, H, W] to float32 [B, C', H·scale, W·scale]; `change` gets windows of at most
    `side` that overlap by `overlap`.

    Where windows overlap their results are blended linearly. Sides and overlap, times the scale,
    are whole numbers.
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
            window = (..., slice(int(top * scale), int(bottom * scale)), slice(int(left * scale), int(right * scale)))
            total[window] += changed * weight
            weights[window] += weight
    assert total is not None and weights is not None  # there is always a first window
    return total / weights


def _spans(length: int, scale: int | Fraction, side: int, overlap: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yields start, end and the weight of each pixel of the result, for tiles along one side."""
    starts = [0] if length <= side else [*range(0, length - side, side - overlap), length - side]
    for start in starts:
        end = min(length, start + side)
        ramp = int(overlap * scale)
        yield start, end, border_ramp(int((end - start) * scale), ramp if start else 0, ramp if end < length else 0)
