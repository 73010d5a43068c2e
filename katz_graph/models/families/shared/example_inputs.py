"""Makes the inputs of example calls on the meta device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from katz_graph.models.stages import Sized


def empty(module: Any, sizes: Sized, *size: int) -> Tensor:
    """Returns an input [B, *size] in the module's dtype."""
    return torch.empty(sizes.batch, *size, device="meta", dtype=module.dtype)


def features(module: Any, sizes: Sized, channels: int, factor: int = 1) -> Tensor:
    """Returns an input [B, C, H, W] in the module's dtype, `factor` times the latent's size."""
    return empty(module, sizes, channels, sizes.height * factor, sizes.width * factor)
