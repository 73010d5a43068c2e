"""Makes the random inputs of example calls, on the device of the module that is called."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from katz_graph.models.stages import Sized


def drawn(module: Any, sizes: Sized, *size: int) -> Tensor:
    """Returns an input [B, *size] in the module's dtype."""
    return torch.randn(sizes.batch, *size, device=module.device, dtype=module.dtype)


def features(module: Any, sizes: Sized, channels: int, factor: int = 1) -> Tensor:
    """Returns an input [B, C, H, W] in the module's dtype, `factor` times the latent's size."""
    return drawn(module, sizes, channels, sizes.height * factor, sizes.width * factor)
