"""Packs several tensors into one block of bytes at aligned offsets, so that the body of a message
is one transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from katz_graph.executor.transport.codec import ProtocolError

ALIGNMENT = 64  # bytes, a cache line


def size_of(lengths: Sequence[int]) -> int:
    """Returns the block size in bytes for tensors of the given byte lengths."""
    return sum(_padded(length) for length in lengths)


def lengths_of(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.numel() * tensor.element_size() for tensor in tensors]


def fill(block: Tensor, tensors: Sequence[Tensor]) -> Callable[[], None]:
    """Copies tensors, contiguous or not and from any device, into a flat uint8 block of
    `size_of(lengths_of(tensors))` bytes. Copies from and to GPUs run on the current streams.
    Returns a function that waits for them, without busy-waiting.
    """
    lengths = lengths_of(tensors)
    for tensor, part in zip(tensors, parts(block, lengths), strict=True):
        if tensor.numel():
            part.view(tensor.dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
    events = [_recorded(device) for device in {one.device for one in tensors if one.is_cuda}]

    def wait() -> None:
        for event in events:
            event.synchronize()

    return wait


def _recorded(device: torch.device) -> torch.cuda.Event:
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def parts(block: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Returns views of a block, one per tensor. Raises ProtocolError if they do not fit."""
    if min(lengths, default=0) < 0 or size_of(lengths) > block.numel():
        raise ProtocolError(
            f"a message has {sum(lengths)} bytes of tensors in a block of {block.numel()}"
        )
    places = accumulate((_padded(length) for length in lengths), initial=0)
    return [block[place : place + length] for place, length in zip(places, lengths, strict=False)]


def coalesced(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Packs tensors into a new block. Waits for the copies."""
    block = torch.empty(size_of(lengths_of(tensors)), dtype=torch.uint8, device=device)
    fill(block, tensors)()
    return block


def _padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT
