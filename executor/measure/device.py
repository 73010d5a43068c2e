"""Measures a device once and stores the result: arithmetic and memory rates, kernel start-up time,
slow-down by busy neighbours.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from katz_graph.core.devices import format_name
from katz_graph.executor.measure.store import DISTURBED, Contention, CostStore, Rates
from katz_graph.host.schedule import scheduled, scheduled_with_neighbours
from katz_graph.ir.device import Device

# assumed rates; of a multiprocessor in float32, and in 16 bits by major compute capability
THREAD_FLOP_PER_CYCLE, MULTIPROCESSOR_FLOP_PER_CYCLE = 32, 256
TENSOR_CORE_FLOP_PER_CYCLE = {7: 1024, 8: 2048, 9: 8192, 10: 16384}
PROCESSOR_HZ, PROCESSOR_BYTES_PER_SECOND, PROCESSOR_KERNEL_S = 2.5e9, 1e10, 1e-5
GPU_HZ, GPU_BYTES_PER_SECOND, GPU_KERNEL_S, GPU_BUS_BYTES_PER_SECOND = 1.5e9, 1e12, 3e-6, 2e10
METHOD = 7  # version of the measurements below; increase it when they change
BYTES = 1 << 26  # of the copied array
# sizes of an arithmetic-bound convolution, and of a block dominated by starting kernels
COMPUTE_BOUND_CHANNELS, COMPUTE_BOUND_SIDE = 128, 64
LAUNCH_BOUND_CHANNELS, LAUNCH_BOUND_SIDE = 32, 8
# for a GPU: side of a matrix product, bytes of a copy, kernels in a graph
MATRIX, GPU_BYTES, KERNELS = 8192, 1 << 30, 1000
# maximum runs per kind of work, and seconds after which fewer runs suffice
REPEATS, MAX_SECONDS_PER_KIND = 9, 1.0


def device_key(device: torch.device, dtype: torch.dtype, threads: int) -> str:
    """Returns the key under which measured costs are stored: the hardware and how it is used."""
    if device.type == "cuda":
        hardware = torch.cuda.get_device_name(device)
    else:
        hardware = f"{_processor()} of {os.cpu_count()} cores, {threads} threads"
    return f"{METHOD}/{hardware}/{str(dtype).removeprefix('torch.')}/torch {torch.__version__}"


def calibrated(
    name: str, device: torch.device, dtype: torch.dtype, store: CostStore, again: bool = False
) -> Device:
    """Returns the device for the planner, measured alone with this process's threads. Measures and
    stores its rates if the store has none, or if programs that no longer run disturbed the stored
    measurement.

    `again` measures in any case.
    """
    key = device_key(device, dtype, torch.get_num_threads())
    if again or store.wants_rates(key):
        store.keep_rates(key, Rates(*measure(device, dtype)))
    return store.device(name, key, format_name(dtype), torch_name=str(device))


def measure(
    device: torch.device, dtype: torch.dtype, stretch: float = 0.0
) -> tuple[float, float, float, float, bool]:
    """Measures FLOP/s, bytes/s, seconds per kernel, and bytes/s from pinned host memory (inf on a
    CPU), using typical network operations. Also returns whether other programs disturbed the
    measurement by taking processor time, or times on a GPU varied.

    The rates are the best of several runs. With `stretch`, the rates are the first quartile over
    that many seconds per kind of work, so devices that start together always do the same kind.
    Processor time of other children of this process's parent then does not count as a disturbance.
    """
    clock = partial(scheduled_with_neighbours, os.getppid()) if stretch else scheduled
    before = clock()
    with torch.inference_mode():
        probe = (_probe_gpu if device.type == "cuda" else _probe_processor)(device, dtype)
        arithmetic = _timed(probe.compute, device, stretch)
        memory = _timed(lambda: probe.target.copy_(probe.source), device, stretch)
        starts = _timed(probe.start, device, stretch)
        part = probe.target[: BYTES // 4]  # less, because pinned memory is expensive
        bus = (
            math.inf
            if device.type == "cpu"
            else part.nbytes / _typical(_timed(_from_host(part), device, stretch), stretch)
        )
    shares = [(clock() - before).share_disturbed]
    if device.type == "cuda":  # the host's scheduler does not see other programs on the GPU
        shares += map(_share_lost, (arithmetic, memory, starts))
    return (
        probe.operations / _typical(arithmetic, stretch),
        2 * probe.target.nbytes / _typical(memory, stretch),
        _typical(starts, stretch) / probe.kernels,
        bus,
        max(shares) > DISTURBED,
    )


def assumed(device: torch.device, dtype: torch.dtype, threads: int) -> Rates:
    """Estimates a device's rates from its properties, within a factor of a few: cores × clock, and
    typical rates of memory.
    """
    if device.type != "cuda":
        flops_per_second = THREAD_FLOP_PER_CYCLE * threads * PROCESSOR_HZ
        return Rates(flops_per_second, PROCESSOR_BYTES_PER_SECOND, PROCESSOR_KERNEL_S)
    found = torch.cuda.get_device_properties(device)
    per_cycle = (
        MULTIPROCESSOR_FLOP_PER_CYCLE
        if dtype == torch.float32
        else TENSOR_CORE_FLOP_PER_CYCLE.get(found.major, MULTIPROCESSOR_FLOP_PER_CYCLE)
    )
    return Rates(
        found.multi_processor_count * per_cycle * GPU_HZ,
        GPU_BYTES_PER_SECOND,
        GPU_KERNEL_S,
        GPU_BUS_BYTES_PER_SECOND,
    )


@dataclass(frozen=True, slots=True)
class Probe:
    """Holds the operations to time on a device. `compute` runs `operations` floating-point
    operations. `start` runs `kernels` kernels, dominated by start-up time. A copy goes from
    `source` to `target`.
    """

    compute: Callable[[], object]
    operations: int
    source: Tensor
    target: Tensor
    start: Callable[[], object]
    kernels: int


def _probe_processor(device: torch.device, dtype: torch.dtype) -> Probe:
    convolution = nn.Conv2d(COMPUTE_BOUND_CHANNELS, COMPUTE_BOUND_CHANNELS, 3, padding=1).to(
        device, dtype
    )
    large = torch.randn(
        1,
        COMPUTE_BOUND_CHANNELS,
        COMPUTE_BOUND_SIDE,
        COMPUTE_BOUND_SIDE,
        device=device,
        dtype=dtype,
    )
    half = (
        nn.GroupNorm(8, LAUNCH_BOUND_CHANNELS),
        nn.SiLU(),
        nn.Conv2d(LAUNCH_BOUND_CHANNELS, LAUNCH_BOUND_CHANNELS, 3, padding=1),
    )
    block = nn.Sequential(*half, *half).to(device, dtype)
    small = torch.randn(
        1, LAUNCH_BOUND_CHANNELS, LAUNCH_BOUND_SIDE, LAUNCH_BOUND_SIDE, device=device, dtype=dtype
    )
    array = torch.zeros(BYTES // 4, device=device)
    return Probe(
        lambda: convolution(large),
        2 * COMPUTE_BOUND_CHANNELS**2 * 9 * COMPUTE_BOUND_SIDE**2,
        array,
        torch.empty_like(array),
        lambda: [block(small) for _ in range(20)],
        20 * len(block),
    )


def _probe_gpu(device: torch.device, dtype: torch.dtype) -> Probe:
    """Builds the probe of a GPU, with sizes beyond its cache and launch overhead: a matrix product,
    a copy, and kernels in a CUDA graph.
    """
    side = MATRIX
    first, second = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    size = min(GPU_BYTES, int(torch.cuda.mem_get_info(device)[0] // 8))
    array = torch.zeros(size // 4, device=device)
    small = torch.zeros(256, device=device)
    small.add_(1)  # keep first-call initialisation out of the graph
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        for _ in range(KERNELS):
            small.add_(1)
    return Probe(
        lambda: torch.mm(first, second),
        2 * side**3,
        array,
        torch.empty_like(array),
        graph.replay,
        KERNELS,
    )


def _from_host(target: Tensor) -> Callable[[], object]:
    source = torch.zeros(target.shape, pin_memory=target.is_cuda)
    return lambda: target.copy_(source)


def contention(alone: Rates, together: Rates) -> Contention:
    """Computes contention from a device's rates alone and while its neighbours do the same work,
    measured with equal `stretch`. Disturbed if either measurement was.
    """
    return Contention(
        max(1.0, alone.flops_per_second / together.flops_per_second),
        max(1.0, alone.bytes_per_second / together.bytes_per_second),
        alone.disturbed or together.disturbed,
    )


def _timed(run: Callable[[], object], device: torch.device, stretch: float) -> list[float]:
    """Returns the seconds of each of several runs."""
    times: list[float] = []
    began = time.perf_counter()
    least, most = (2, math.inf) if stretch else (1, REPEATS)
    while len(times) < least or (
        len(times) < most and time.perf_counter() - began < (stretch or MAX_SECONDS_PER_KIND)
    ):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - started)
    return times


def _typical(times: Sequence[float], stretch: float) -> float:
    return statistics.quantiles(times, n=4)[0] if stretch else min(times)


def _share_lost(times: Sequence[float]) -> float:
    """Estimates the share of a typical run lost to other programs. An undisturbed GPU takes equally
    long each time.
    """
    return 1 - min(times) / statistics.median(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _processor() -> str:
    """Returns the processor model reported by Linux, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
