"""Prepares the reference pictures of ControlNets."""

from __future__ import annotations

from torch import Tensor

from katz_graph.files.images import resize
from katz_graph.picture.batch import repeated


def fit_reference(pixels: Tensor, batch: int, height: int, width: int) -> Tensor:
    """Resizes pictures [b, H, W, C] in 0..1 to [batch, 3, height, width] by nearest-exact, with a
    centre crop, and repeats them to fill the batch.
    """
    if pixels.shape[-1] == 1:
        pixels = pixels.expand(-1, -1, -1, 3)
    fitted = resize(pixels[..., :3], width, height, "nearest-exact", "center").movedim(-1, 1)
    return repeated(fitted, batch).contiguous()
