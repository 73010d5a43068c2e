"""Grows, feathers and combines masks [B, H, W] in 0..1, and pads pictures with a mask for
outpainting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.picture.batch import repeated
from katz_graph.picture.compose import border_ramp

GREY = 0.5  # value of regions to be painted


def grow(mask: Tensor, by: int, tapered: bool) -> Tensor:
    """Dilates by 1 pixel `by` times (erodes if negative), with a 3x3 kernel, or a cross if
    `tapered`.
    """
    planes = (mask if by > 0 else -mask).reshape(-1, 1, *mask.shape[-2:])
    for _ in range(abs(by)):
        if tapered:
            grown = torch.maximum(
                F.max_pool2d(planes, (3, 1), 1, (1, 0)), F.max_pool2d(planes, (1, 3), 1, (0, 1))
            )
        else:
            grown = F.max_pool2d(planes, 3, 1, 1)
        if torch.equal(grown, planes):
            break
        planes = grown
    return (planes if by > 0 else -planes)[:, 0]


def feather(mask: Tensor, left: int, top: int, right: int, bottom: int) -> Tensor:
    """Fades the mask at its borders: weights are 1/left in the outermost of `left` columns, 2/left
    in the next, and likewise on other sides.
    """
    high, wide = mask.shape[-2:]
    return (
        mask
        * border_ramp(high, top, bottom).to(mask)[:, None]
        * border_ramp(wide, left, right).to(mask)
    )


def _binary(operation: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda below, above: operation(below.round().bool(), above.round().bool()).to(below)


COMBINATIONS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "multiply": torch.mul,
    "add": torch.add,
    "subtract": torch.sub,
    "and": _binary(torch.logical_and),
    "or": _binary(torch.logical_or),
    "xor": _binary(torch.logical_xor),
}


def combine(below: Tensor, above: Tensor, x: int, y: int, operation: str) -> Tensor:
    """Applies `above` [b, h, w] to `below` [B, H, W] at column x, row y, clipped to it; the result
    is in 0..1.
    """
    result = below.clone()
    window = result[:, y : y + above.shape[1], x : x + above.shape[2]]
    part = repeated(above.to(below), len(below))[:, : window.shape[1], : window.shape[2]]
    window.copy_(COMBINATIONS[operation](window, part))
    return result.clamp(0, 1)


def greyed(picture: Tensor, mask: Tensor) -> Tensor:
    """Sets [B, H, W, C] to grey where the mask [b, H, W], rounded, is 1."""
    return (picture - GREY) * (1.0 - mask.round()).unsqueeze(-1) + GREY


def pad_for_outpaint(
    image: Tensor, left: int, top: int, right: int, bottom: int, feathering: int
) -> tuple[Tensor, Tensor]:
    """Adds a grey border to [B, H, W, C] and makes the mask [1, H', W'] of the region to paint.

    The mask is 1 on the border and falls quadratically over `feathering` pixels into the picture on
    each padded side. Pictures too small for that get no transition.
    """
    high, wide = image.shape[1:3]
    padded = F.pad(image.movedim(-1, 1), (left, right, top, bottom), value=GREY).movedim(1, -1)
    inside = torch.zeros(high, wide)
    if feathering > 0 and feathering * 2 < min(high, wide):
        distance = torch.minimum(
            _distance(high, top, bottom)[:, None], _distance(wide, left, right)
        )
        inside = ((feathering - distance) / feathering).clamp(min=0).square()
    return padded, F.pad(inside, (left, right, top, bottom), value=1.0).unsqueeze(0)


def _distance(length: int, start: int, end: int) -> Tensor:
    """Returns the distance [length] in pixels to the nearest padded side; `length` if none is."""
    position = torch.arange(length, dtype=torch.float32)
    from_start = position if start else torch.full_like(position, length)
    return torch.minimum(from_start, length - position) if end else from_start
