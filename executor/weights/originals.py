"""Keeps the originals of weights: on their device where it has room, else on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from katz_graph.executor.weights.weight_cache import byte_size
from katz_graph.host.transfer import to_host

Beside = Callable[[], AbstractContextManager[float]]
"""Gives the bytes of a device that may be taken for long, which is done inside its `with`."""


def nowhere() -> AbstractContextManager[float]:
    """Implements `Beside`: nothing may be taken."""
    return nullcontext(0.0)


class Originals:
    """Holds the originals of a module's weights by name. What is on the device can be given back:
    it goes to pinned memory of the host.
    """

    def __init__(self, beside: Beside = nowhere) -> None:
        self._beside = beside
        self._tensors: dict[str, Tensor] = {}
        self._on_device: set[str] = set()

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self._tensors

    @property
    def device_bytes(self) -> int:
        """Returns what can be given back."""
        return byte_size(self._tensors[name] for name in self._on_device)

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Copies weights, on their device if there is room for all of these, else to the host."""
        if not weights:
            return
        with self._beside() as room:
            fits = byte_size(weights.values()) <= room
            copy = torch.clone if fits else to_host
            copies = {name: copy(weight) for name, weight in weights.items()}
            self._tensors |= copies
            self._on_device |= copies.keys() if fits else set()

    def give_back(self, size: float) -> None:
        """Frees so many bytes of the device, or all that originals take."""
        while size > 0 and self._on_device:
            name = next(iter(self._on_device))
            size -= self._tensors[name].nbytes
            self._tensors[name] = to_host(self._tensors[name])
            self._on_device.remove(name)  # only now: memory of the host may run out
