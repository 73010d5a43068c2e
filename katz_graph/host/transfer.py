"""Moves tensors from the host to a device: small ones without waiting for what the device is doing,
those of files while the next is read. And back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

import torch
from torch import Tensor

RING_BYTES = 2**25  # of each pinned buffer


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Moves a tensor of the host to a device, through pinned memory: the host goes on while the
    device still works on what it was given before.
    """
    place = torch.device(device)
    if place.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(place)
    return (tensor.pin_memory() if place.type == "cuda" else tensor).to(place, non_blocking=True)


def to_host(tensor: Tensor) -> Tensor:
    """Copies a tensor to the host, as it lies; that of a GPU to pinned memory."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


def uploading(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Returns what brings one tensor of a file after the other to a device; on a processor they are
    there.
    """
    return (lambda tensor: tensor) if device.type == "cpu" else Ring(device, RING_BYTES)


class Ring:
    """Brings tensors of the host to a device through two pinned buffers: while the device copies
    from one, the other is filled.
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
        """Returns the tensor on the device, contiguous, in its own number format."""
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
