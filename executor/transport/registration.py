"""Registers mapped memory with CUDA: a GPU then copies from and to it at the speed of its bus,
while the host goes on. Must not know what the memory is for.
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
"""All bytes of a mapping, which ends with the last array that views it."""

Register = Callable[[Mapping], None]


def registering(device: torch.device) -> Register:
    """Returns what registers a mapping for copies of this device until the mapping ends; for a
    processor it does nothing.
    """
    return (lambda mapping: None) if device.type != "cuda" else CudaRegistration(device)


class CudaRegistration:
    """Implements `Register` for a GPU. Where a registration fails the mapping is used as it is, and
    a warning, shown once, says so. Any thread may call.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(self, mapping: Mapping) -> None:
        # CUDA keeps an error for the thread that met it, and torch would report it at the thread's
        # next kernel: a thread of its own takes it along
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
        # called before the array lets go of the mapping
        weakref.finalize(mapping, self._unregister, address).atexit = False

    def _unregister(self, address: int) -> None:
        with torch.cuda.device(self._device):
            _library().cudaHostUnregister(address)


def _library() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
