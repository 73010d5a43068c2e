"""Moves tensors between host and device: small tensors without waiting for queued device work, each
tensor of a file while the next one is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import torch
from torch import Tensor

RING_BYTES = 2**25  # size of each pinned buffer


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Moves a host tensor to a device through pinned memory, without waiting for queued device
    work.
    """
    place = torch.device(device)
    if place.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(place)
    return (tensor.pin_memory() if place.type == "cuda" else tensor).to(place, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """Copies a tensor to the host; from a GPU, to pinned memory."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


def uploading(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Returns a function that moves the tensors of a file to a device one after the other; the
    identity for the CPU.
    """
    return (lambda tensor: tensor) if device.type == "cpu" else Ring(device, RING_BYTES)


class Ring:
    """Copies host tensors to a device through two pinned buffers: the host fills one while the
    device copies from the other.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self._device = device
        pins = device.type == "cuda"
        self._buffers: Iterator[tuple[Tensor, torch.cuda.Event | None]] = cycle(
            (
                torch.empty(size, dtype=torch.uint8, pin_memory=pins),
                torch.cuda.Event() if pins else None,  # type: ignore[no-untyped-call]
            )
            for _ in range(2)
        )
        self._size = size

    def __call__(self, tensor: Tensor) -> Tensor:
        """Returns the tensor on the device, contiguous, in the same dtype."""
        there = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        source, target = (one.view(-1).view(torch.uint8) for one in (tensor.contiguous(), there))
        for begin in range(0, len(source), self._size):
            part = source[begin : begin + self._size]
            buffer, copied = next(self._buffers)
            if copied is not None:
                copied.synchronize()
            target[begin : begin + len(part)].copy_(
                buffer[: len(part)].copy_(part), non_blocking=True
            )
            if copied is not None:
                copied.record()
        return there
