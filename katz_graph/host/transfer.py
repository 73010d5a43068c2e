"""Moves tensors from the host to a device: small ones without waiting for what the device is doing,
those of files while the next is read. And back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, cycle, groupby

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
        return self.together([tensor])[0].view(tensor.shape)

    def together(self, tensors: Sequence[Tensor], multiple: int = 1) -> list[Tensor]:
        """Returns tensors of one number format on the device, flat, in one piece of memory: each
        begins at a multiple of so many values.
        """
        sizes = [-(-tensor.numel() // multiple) * multiple for tensor in tensors]
        memory = torch.empty(sum(sizes), dtype=tensors[0].dtype, device=self._device)
        starts = accumulate(sizes, initial=0)
        self._send(
            (
                (memory.itemsize * start, tensor.contiguous().view(-1).view(torch.uint8))
                for start, tensor in zip(starts, tensors, strict=False)
            ),
            memory.view(torch.uint8),
        )
        return [
            part[: tensor.numel()]
            for part, tensor in zip(memory.split(sizes), tensors, strict=True)
        ]

    def _send(self, pieces: Iterable[tuple[int, Tensor]], target: Tensor) -> None:
        """Copies bytes to their places in memory of the device, in ascending order."""
        for window, inside in groupby(self._cut(pieces), lambda piece: piece[0]):
            buffer, copied = next(self._buffers)
            if copied is not None:
                copied.synchronize()
            for _, begin, part in inside:
                buffer[begin : begin + len(part)].copy_(part)
                filled = begin + len(part)
            first = window * self._size
            target[first : first + filled].copy_(buffer[:filled], non_blocking=True)
            if copied is not None:
                copied.record()

    def _cut(self, pieces: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[int, int, Tensor]]:
        """Yields bytes, the number of the filled buffer that has them, and their place there."""
        for place, piece in pieces:
            while len(piece):
                window, begin = divmod(place, self._size)
                room = self._size - begin
                yield window, begin, piece[:room]
                place, piece = place + room, piece[room:]
