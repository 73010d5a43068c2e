"""Memory of a GPU that another process opens. CUDA's runtime is a fake."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from katz_graph.core.errors import RunError
from katz_graph.executor.transport.cuda_memory import CudaAllocator

BASE, MAPPED = 0x7000, 0x9000  # addresses of an allocation, in its process and in another


class Handle:
    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(64)

    def getPtr(self) -> int:
        return ctypes.addressof(self._bytes)


class Runtime:
    """Fakes cuda.bindings.runtime; `fails` names the calls that return an error."""

    cudaIpcMemHandle_t = Handle
    cudaIpcMemLazyEnablePeerAccess = 1

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self.devices: set[int] = set()

    def cudaSetDevice(self, index: int) -> tuple[int]:
        self.devices.add(index)
        return (0,)

    def cudaMalloc(self, size: int) -> tuple[int, int]:
        return self._result("cudaMalloc", size), BASE

    def cudaIpcGetMemHandle(self, pointer: int) -> tuple[int, Handle]:
        handle = Handle()
        ctypes.memmove(handle.getPtr(), pointer.to_bytes(64, "little"), 64)
        return self._result("cudaIpcGetMemHandle", pointer), handle

    def cudaIpcOpenMemHandle(self, handle: Handle, flags: int) -> tuple[int, int]:
        data = int.from_bytes(ctypes.string_at(handle.getPtr(), 64), "little")
        return self._result("cudaIpcOpenMemHandle", data, flags), MAPPED

    def cudaFree(self, pointer: int) -> tuple[int]:
        return (self._result("cudaFree", pointer),)

    def cudaIpcCloseMemHandle(self, pointer: int) -> tuple[int]:
        return (self._result("cudaIpcCloseMemHandle", pointer),)

    def cudaGetErrorString(self, error: int) -> tuple[int, bytes]:
        return 0, b"invalid argument"

    def _result(self, name: str, *given: Any) -> int:
        self.calls[name, *given] += 1
        return int(name in self.fails)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    runtime = Runtime()
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(runtime=runtime))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    return runtime


def join_threads() -> None:
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("cuda"):
            thread.join(5)


def test_memory_is_freed_and_closed_with_its_last_part(runtime: Runtime) -> None:
    allocator, closed = CudaAllocator(torch.device("cuda:1")), list[bool]()
    sent, handle = allocator.allocate(1 << 21)
    came = allocator.open(handle, lambda: closed.append(True))
    assert runtime.calls["cudaIpcOpenMemHandle", BASE, 1] == 1 and runtime.devices == {1}
    parts = {BASE: sent[:100], MAPPED: came[:100]}
    del sent, came
    join_threads()
    for address, part in parts.items():
        assert part.__cuda_array_interface__["data"] == (address, False)
        assert part.__cuda_array_interface__["shape"] == (part.nbytes,) == (100,)
    frees = ("cudaFree", BASE), ("cudaIpcCloseMemHandle", MAPPED)
    assert not closed and not any(runtime.calls[one] for one in frees)
    del part
    parts.clear()
    join_threads()
    assert closed and [runtime.calls[one] for one in frees] == [1, 1]


def test_a_refusal_of_cuda_is_explained_and_frees_the_memory(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = CudaAllocator(torch.device("cuda"))
    for name in ("cudaMalloc", "cudaIpcGetMemHandle"):
        runtime.fails = {name}
        with pytest.raises(RunError, match=f"{name} fails: invalid argument"):
            allocator.allocate(1 << 21)
    join_threads()
    assert runtime.calls["cudaFree", BASE] == 1
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(RunError, match="cuda-bindings cannot be imported"):
        CudaAllocator(torch.device("cuda")).allocate(1)
