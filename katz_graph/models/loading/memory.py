"""Measures a device's memory: the free bytes, and the peak of a computation."""

from __future__ import annotations

import ctypes
import gc
import math

import torch

from katz_graph.host import memory as host_memory

SHARED_POOL = (0, 0)  # torch's pool of all tensors that no CUDA graph made


def unused_bytes(device: torch.device) -> int:
    """Returns the bytes of a GPU that torch keeps and gives to the next tensors. What lies unused
    in the private pools of CUDA graphs is no part of it: only graphs may take that.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    number = torch.cuda.current_device() if device.index is None else device.index
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == number and tuple(segment["segment_pool_id"]) == SHARED_POOL
    )


class DeviceMemory:
    """Measures the memory of a GPU, or that of the host as far as this process may take it."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._taken: float | None = None  # nothing is asked of a GPU before it is used

    @property
    def total(self) -> float:
        """Returns all bytes."""
        if self.device.type == "cuda":
            return float(torch.cuda.mem_get_info(self.device)[1])
        return host_memory.total_bytes()

    def free(self) -> float:
        """Returns the bytes to be had now: with what torch keeps of a GPU and does not use."""
        if self.device.type != "cuda":
            return host_memory.free_bytes()
        return float(torch.cuda.mem_get_info(self.device)[0] + unused_bytes(self.device))

    def watch(self) -> None:
        """Measures `peak` from now on."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._taken = float(torch.cuda.memory_allocated(self.device))
        else:
            host_memory.reset_peak()
            self._taken = host_memory.status_bytes("VmRSS")

    def peak(self) -> float:
        """Returns the most bytes that were taken at once besides those that were when `watch` was
        called last; 0 if it never was.
        """
        if self._taken is None:
            return 0.0
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device)) - self._taken
        most = host_memory.status_bytes("VmHWM")
        return max(0.0, most - self._taken) if math.isfinite(most) else 0.0

    def collect(self) -> None:
        """Gives unused memory back."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)  # glibc keeps what was freed between what is in use
