"""Moves tensors from the host to a device without waiting for what the device is doing."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Moves a tensor of the host to a device, through pinned memory: the host goes on while the
    device still works on what it was given before.
    """
    place = torch.device(device)
    if place.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(place)
    return (tensor.pin_memory() if place.type == "cuda" else tensor).to(place, non_blocking=True)
