"""Allocates memory of a GPU that other processes can open (CUDA IPC). Must not know its purpose.

The allocations are not torch's: torch frees memory that it has shared only when all receivers have
said so, and a killed one never does.
"""

from __future__ import annotations

import ctypes
import struct
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from katz_graph.core.errors import RunError

HANDLE = struct.Struct("<Q64s")  # capacity in bytes, cudaIpcMemHandle_t


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class CudaArray:
    """Bytes on a GPU, for `torch.as_tensor`. `owner`: the object whose end frees the memory."""

    pointer: int
    nbytes: int
    owner: object

    def __getitem__(self, part: slice) -> CudaArray:
        """Returns the bytes up to `part.stop`."""
        return CudaArray(self.pointer, min(part.stop, self.nbytes), self.owner)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "version": 2,
        }


class _Owner:
    """The end of this object frees or closes memory."""


class CudaAllocator:
    """Implements `DeviceAllocator` for a GPU, which is touched at the first call. Any thread may
    call.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", device.index or 0)

    @cached_property
    def _runtime(self) -> Any:
        try:
            from cuda.bindings import runtime  # a requirement of torch's builds for CUDA
        except ImportError as error:
            raise RunError(f"the package cuda-bindings cannot be imported: {error}") from None
        return runtime

    def allocate(self, capacity: int) -> tuple[CudaArray, bytes]:
        pointer = int(self._call("cudaMalloc", capacity))
        array = self._owned(pointer, capacity, "cudaFree", lambda: None)
        handle = self._call("cudaIpcGetMemHandle", pointer)
        return array, HANDLE.pack(capacity, ctypes.string_at(int(handle.getPtr()), 64))

    def open(self, handle: bytes, closed: Callable[[], object]) -> CudaArray:
        capacity, data = HANDLE.unpack(handle)
        copy = self._runtime.cudaIpcMemHandle_t()
        ctypes.memmove(int(copy.getPtr()), data, len(data))
        lazily = self._runtime.cudaIpcMemLazyEnablePeerAccess
        pointer = int(self._call("cudaIpcOpenMemHandle", copy, lazily))
        return self._owned(pointer, capacity, "cudaIpcCloseMemHandle", closed)

    def _owned(
        self, pointer: int, capacity: int, end: str, ended: Callable[[], object]
    ) -> CudaArray:
        owner = _Owner()
        weakref.finalize(owner, self._end, end, pointer, ended).atexit = False
        return CudaArray(pointer, capacity, owner)

    def _end(self, name: str, pointer: int, ended: Callable[[], object]) -> None:
        """Frees memory in a thread, because the call waits for the GPU and may not run in a thread
        that records a CUDA graph.
        """

        def end() -> None:
            try:
                self._call(name, pointer)
            finally:
                ended()

        threading.Thread(target=end, name=name, daemon=True).start()

    def _call(self, name: str, *given: Any) -> Any:
        """Calls CUDA's runtime on this device. Raises RunError with CUDA's reason."""
        with torch.cuda.device(self.device):
            results = self._runtime.cudaSetDevice(self.device.index)
            if not int(results[0]):
                results = getattr(self._runtime, name)(*given)
        if int(results[0]):
            why = self._runtime.cudaGetErrorString(results[0])[1].decode()
            raise RunError(f"{name} fails: {why}")
        return results[-1]
