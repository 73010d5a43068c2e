"""Measures a device's memory: the free bytes, and the peak of a computation."""

from __future__ import annotations

import ctypes
import gc
import math

import torch

from katz_graph.host import memory as host_memory

SHARED_POOL = (0, 0)  # torch's pool for all tensors outside CUDA graphs


def unused_bytes(device: torch.device) -> int:
    """Returns the bytes of a GPU that torch has reserved and not allocated. Excludes the private
    pools of CUDA graphs, which only graphs may use.
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
    """Measures the memory of a GPU, or the host memory available to this process."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._taken: float | None = None  # None until `watch`: does not initialise an unused GPU

    @property
    def total(self) -> float:
        if self.device.type == "cuda":
            return float(torch.cuda.mem_get_info(self.device)[1])
        return host_memory.total_bytes()

    def free(self) -> float:
        """Returns the bytes available now, including a GPU's bytes reserved but unused by torch."""
        if self.device.type != "cuda":
            return host_memory.free_bytes()
        return float(torch.cuda.mem_get_info(self.device)[0] + unused_bytes(self.device))

    def watch(self) -> None:
        """Starts measuring `peak`."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            self._taken = float(torch.cuda.memory_allocated(self.device))
        else:
            host_memory.reset_peak()
            self._taken = host_memory.status_bytes("VmRSS")

    def peak(self) -> float:
        """Returns the peak bytes allocated since the last `watch`, minus those allocated at that
        call; 0 if it was never called.
        """
        if self._taken is None:
            return 0.0
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device)) - self._taken
        most = host_memory.status_bytes("VmHWM")
        return max(0.0, most - self._taken) if math.isfinite(most) else 0.0

    def collect(self) -> None:
        """Releases unused memory."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        elif (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
            trim(0)  # glibc retains freed memory between blocks in use
