"""Pastes one batch of planes [B, C, H, W] over another, through a mask or with feathered borders.
Pictures and latents alike.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from katz_graph.picture.batch import repeated
from katz_graph.sampling.areas import fit_mask


def paste(below: Tensor, above: Tensor, x: int, y: int, mask: Tensor | None = None, fill: bool = False) -> Tensor:
    """Pastes `above` at column x and row y of `below`, as far as it lies inside; where the mask [b,
    h, w] is 1 it covers.

    The mask is fitted to `above`, which is fitted to `below` with `fill`; the length of the batch
    is that of `below`.
    """
    if fill:
        above = interpolate(above, size=below.shape[-2:], mode="bilinear")
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
    """Makes a mask [1, h, w] for planes at (x, y) of something `high` by `wide`: ramps of `feather`
    cells on the borders that lie inside it.
    """
    rows, columns = planes.shape[-2:]
    down = border_ramp(rows, feather if y else 0, feather if y + rows < high else 0)
    right = border_ramp(columns, feather if x else 0, feather if x + columns < wide else 0)
    return (down[:, None] * right[None, :]).unsqueeze(0).to(planes)


def border_ramp(length: int, start: int, end: int) -> Tensor:
    """Makes a ramp [length], 1 inside; the first `start` values rise as 1/start, 2/start ... 1, the
    last `end` fall likewise.
    """
    ramp = torch.ones(length)
    start, end = min(start, length), min(end, length)
    ramp[:start] *= torch.arange(1, start + 1) / max(start, 1)
    ramp[length - end :] *= torch.arange(end, 0, -1) / max(end, 1)
    return ramp
