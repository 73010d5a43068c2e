"""Where the engine computes, for packs that move tensors themselves."""

from __future__ import annotations

import torch

from katz_graph.compat.current import current


def compute_device() -> torch.device:
    """The device of the engine that runs now; before one runs, the one that it would most likely be."""
    now = current()
    if now is not None and now.context.engine is not None:
        return torch.device(now.context.engine.device.name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
