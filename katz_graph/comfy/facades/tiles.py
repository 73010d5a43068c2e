"""Applies a function to pictures or latents in overlapping tiles, and blends the overlaps. Must not
know the function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Scale = float | Callable[[int], float]


def tiled_scale(
    samples: Tensor,
    function: Callable[[Tensor], Tensor],
    tile_x: int = 64,
    tile_y: int = 64,
    overlap: int = 8,
    upscale_amount: Scale = 4,
    out_channels: int = 3,
    output_device: Any = "cpu",
    pbar: Any = None,
) -> Tensor:
    """Maps [B, C, H, W] to [B, out_channels, H·amount, W·amount] by applying `function` to tiles of
    `tile_y` x `tile_x`.
    """
    return tiled_scale_multidim(
        samples,
        function,
        (tile_y, tile_x),
        overlap,
        upscale_amount,
        out_channels,
        output_device,
        pbar=pbar,
    )


def tiled_scale_multidim(
    samples: Tensor,
    function: Callable[[Tensor], Tensor],
    tile: Sequence[int] = (64, 64),
    overlap: int | Sequence[int] = 8,
    upscale_amount: Scale = 4,
    out_channels: int = 3,
    output_device: Any = "cpu",
    downscale: bool = False,
    index_formulas: Any = None,
    pbar: Any = None,
) -> Tensor:
    """Applies a function in tiles over any number of axes after [B, C]. Overlaps are weighted means
    of the tiles, with weights that fade linearly.
    """
    overlaps = [overlap] * len(tile) if isinstance(overlap, int) else list(overlap)
    factor = upscale_amount(1) if callable(upscale_amount) else upscale_amount
    scale = 1 / factor if downscale else factor
    sizes = [round(size * scale) for size in samples.shape[2:]]
    result = torch.empty(len(samples), out_channels, *sizes, device=output_device)
    for number, sample in enumerate(torch.split(samples, 1)):
        total = torch.zeros(1, out_channels, *sizes, device=output_device)
        weight = torch.zeros(1, 1, *sizes, device=output_device)
        for corner in itertools.product(*_starts(samples.shape[2:], tile, overlaps)):
            window = tuple(
                slice(start, start + length) for start, length in zip(corner, tile, strict=True)
            )
            made = function(sample[(slice(None), slice(None), *window)]).to(output_device)
            placed = tuple(
                slice(s := round(start * scale), s + length)
                for start, length in zip(corner, made.shape[2:], strict=True)
            )
            ramp = _ramp(made.shape[2:], [round(one * scale) for one in overlaps]).to(made.device)
            total[(slice(None), slice(None), *placed)] += made * ramp
            weight[(slice(None), slice(None), *placed)] += ramp
            if pbar is not None:
                pbar.update(1)
        result[number] = (total / weight)[0]
    return result


def tiled_scale_steps(width: int, height: int, tile_x: int, tile_y: int, overlap: int) -> int:
    """Counts the tiles that a picture of this size needs."""
    return math.prod(
        len(starts) for starts in _starts((height, width), (tile_y, tile_x), (overlap, overlap))
    )


def _starts(sizes: Iterable[int], tile: Iterable[int], overlaps: Iterable[int]) -> list[list[int]]:
    """Returns the start positions of the tiles on each axis; the last tile ends at the border."""
    starts = []
    for size, length, shared in zip(sizes, tile, overlaps, strict=True):
        step = max(1, length - shared)
        starts.append(
            [min(start, size - length) for start in range(0, size - shared, step)]
            if size > length
            else [0]
        )
    return starts


def _ramp(sizes: Iterable[int], feathers: Iterable[int]) -> Tensor:
    """Builds a blending weight [1, 1, ...]: 1 inside, with linear falloff to the borders over the
    overlap.
    """
    weights = torch.ones(1, 1, *sizes)
    for axis, (size, feather) in enumerate(zip(weights.shape[2:], feathers, strict=True), start=2):
        if not feather:
            continue
        distance = torch.minimum(torch.arange(size), torch.arange(size).flip(0)) + 1
        shape = [1] * weights.ndim
        shape[axis] = size
        weights = weights * (distance / feather).clamp(max=1.0).reshape(shape)
    return weights
