"""Registers mapped memory with CUDA, so that GPU copies from and to it run asynchronously at bus
speed. Must not know the purpose of the memory.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Mapping = np.ndarray[tuple[int], np.dtype[np.uint8]]
"""All bytes of a mapping; it is unmapped with the last array that views it."""

Register = Callable[[Mapping], None]


def registering(device: torch.device) -> Register:
    """Returns a function that pins a mapping for copies to and from this device until it is
    unmapped. For a CPU it does nothing.
    """
    return (lambda mapping: None) if device.type != "cuda" else CudaRegistration(device)


class CudaRegistration:
    """Implements `Register` for a GPU. If registration fails, the mapping stays unregistered, with
    a warning that is shown once. Any thread may call.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, mapping: Mapping) -> None:
        # a short-lived thread: CUDA stores an error per thread, and torch would report it at the
        # thread's next kernel
        thread = threading.Thread(target=self._register, args=[mapping], name="register memory")
        thread.start()
        thread.join()

    def _register(self, mapping: Mapping) -> None:
        address = mapping.ctypes.data
        try:
            with torch.cuda.device(self._device):
                runtime = _library()
                result = runtime.cudaHostRegister(address, mapping.nbytes, 0)
                why = runtime.cudaGetErrorString(result) if int(result) else ""
        except (RuntimeError, AttributeError) as error:
            why = str(error).splitlines()[0]
        if why:
            return warnings.warn(
                f"CUDA does not register shared memory ({why}): copies between GPUs are slower",
                stacklevel=1,
            )
        # runs before the array releases the mapping
        weakref.finalize(mapping, self._unregister, address).atexit = False

    def _unregister(self, address: int) -> None:
        with torch.cuda.device(self._device):
            _library().cudaHostUnregister(address)


def _library() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
