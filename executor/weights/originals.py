"""Stores the originals of weights on their device if memory allows, else on the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from katz_graph.executor.weights.weight_cache import byte_size
from katz_graph.host.transfer import to_host

SpareMemory = Callable[[], AbstractContextManager[float]]
"""Yields the bytes of device memory available for long-lived tensors; allocate them inside the
`with`.
"""


def nowhere() -> AbstractContextManager[float]:
    """Implements `SpareMemory` without any device memory."""
    return nullcontext(0.0)


class Originals:
    """Holds the originals of a module's weights by name. Originals on the device can be moved to
    pinned host memory; `moving` is called before, to drop other references to them.
    """

    def __init__(
        self, spare_memory: SpareMemory = nowhere, moving: Callable[[], None] = lambda: None
    ) -> None:
        self._spare_memory, self._moving = spare_memory, moving
        self._tensors: dict[str, Tensor] = {}
        self._on_device: set[str] = set()

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self._tensors

    @property
    def device_bytes(self) -> int:
        """Returns the bytes of originals that can be moved off the device."""
        return byte_size(self._tensors[name] for name in self._on_device)

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Copies weights to their device while memory allows, and the others to the host."""
        if not weights:
            return
        with self._spare_memory() as room:
            for name, weight in weights.items():
                fits = weight.nbytes <= room
                self._tensors[name] = weight.clone() if fits else to_host(weight)
                if fits:
                    room -= weight.nbytes
                    self._on_device.add(name)

    def give_back(self, size: float) -> None:
        """Moves originals to the host, `size` bytes or all of them."""
        if size > 0 and self._on_device:
            self._moving()
        while size > 0 and self._on_device:
            name = next(iter(self._on_device))
            size -= self._tensors[name].nbytes
            self._tensors[name] = to_host(self._tensors[name])
            self._on_device.remove(name)  # only after the copy, because host memory may run out
