"""Runs the vision tower of a text encoder, a module of transformers, on one picture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
    get_vision_window_index,
)

from katz_graph.core.recipe import SeenPicture
from katz_graph.files.images import resize
from katz_graph.ir.values import PictureRows
from katz_graph.models.text.kinds import Sight
from katz_graph.models.text.pictures import grid, merged_patch, sight_of


def see(module: Any, recipe: SeenPicture) -> PictureRows:
    """Returns the rows of a picture [1, H, W, 3], resized to whole merged patches."""
    (rows, columns), side = grid(recipe.tower, recipe.picture), merged_patch(recipe.tower)
    pixels = resize(recipe.picture.pixels, columns * side, rows * side, "bilinear")
    read = patches(module.config, sight_of(recipe.tower), pixels)
    return tower_rows(module, read.to(module.device), rows, columns)


def patches(settings: Any, sight: Sight, pixels: Tensor) -> Tensor:
    """Returns the patches [N, C · times · side · side] of pixels [1, H, W, 3] in 0..1, by merged
    patch. A picture is a video of equal frames.
    """
    side, merged, times = (
        int(getattr(settings, name))
        for name in ("patch_size", "spatial_merge_size", "temporal_patch_size")
    )
    mean, deviation = (torch.tensor(one) for one in (sight.mean, sight.deviation))
    frame = ((pixels[0].float() - mean) / deviation).movedim(-1, 0)
    colours, height, width = frame.shape
    rows, columns = height // (merged * side), width // (merged * side)
    split = frame.reshape(colours, rows, merged, side, columns, merged, side)
    ordered = split.permute(1, 4, 2, 5, 0, 3, 6)[..., None, :, :]
    every = ordered.expand(*ordered.shape[:5], times, side, side)
    return every.reshape(-1, colours * times * side * side)


@torch.no_grad()
def tower_rows(module: Any, read: Tensor, rows: int, columns: int) -> PictureRows:
    """Returns the rows of patches [N, ...] of a picture of rows x columns merged patches. The
    places of patches and windows are computed on the host.
    """
    settings, place = module.config, read.device
    merged: int = settings.spatial_merge_size
    size = torch.tensor([[1, rows * merged, columns * merged]])
    given = {
        "position_ids": get_vision_position_ids(size, merged).to(place),
        "cu_seqlens": get_vision_cu_seqlens(size),
    }
    if hasattr(settings, "window_size"):
        index, ends = get_vision_window_index(
            size, merged, settings.window_size, settings.patch_size
        )
        given |= {"window_index": index.to(place), "cu_window_seqlens": ends}
    else:
        index, weights = get_vision_interpolation_indices_and_weights(
            size,
            num_grid_per_side=module.num_grid_per_side,
            mode=module.interpolation_mode,
            align_corners=module.interpolation_align_corners,
            spatial_merge_size=merged,
        )
        given |= {"interp_indices": index.to(place), "interp_weights": weights.to(place)}
    output = module(read, grid_thw=size, **given)
    deep = getattr(output, "deepstack_features", None) or ()
    return PictureRows(output.pooler_output[None], tuple(one[None] for one in deep))
