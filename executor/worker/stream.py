"""Reads what a device has computed: the host enqueues work, and waits for it here only.

A processor has done its work when the call returns; a GPU does it later, in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

Reading = Callable[[], Tensor]
"""Waits until a tensor is on the host, and returns it."""


class Stream(Protocol):
    """Presents a device's queue of work."""

    @property
    def ahead(self) -> int:
        """Returns how many evaluations of a request may be enqueued behind one that has not
        ended.
        """

    def read(self, tensor: Tensor) -> Reading:
        """Begins to copy a tensor to the host, behind what is enqueued."""


class HostStream:
    """Presents a processor: what was computed is there."""

    ahead = 0

    def read(self, tensor: Tensor) -> Reading:
        return lambda: tensor


class CudaStream:
    """Presents a GPU by the stream that torch enqueues its work on. While the host waits for an
    evaluation the next one is enqueued, so that the GPU never does.
    """

    ahead = 1

    def read(self, tensor: Tensor) -> Reading:
        landing = torch.empty_like(tensor, device="cpu", pin_memory=True)
        landing.copy_(tensor, non_blocking=True)
        landed = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        landed.record(torch.cuda.current_stream(tensor.device))

        def wait() -> Tensor:
            landed.synchronize()
            return landing

        return wait


def stream_of(device: torch.device) -> Stream:
    return CudaStream() if device.type == "cuda" else HostStream()
