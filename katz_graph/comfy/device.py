"""Tells packs the engine's device, for those that move tensors themselves."""

from __future__ import annotations

import torch

from katz_graph.scope import current


def compute_device() -> torch.device:
    """Returns the device of the engine that runs now, as far as this process has it; before one
    runs, the one that it would most likely be.
    """
    now = current()
    if now is None or now.context.engine is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(now.context.engine.device.torch_name)
    elsewhere = device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()  # on another machine of a cluster
    return torch.device("cpu") if elsewhere else device
