"""Measures the peak rates of the device and briefly checks the kernels' results on it."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import diffusers
import torch
from torch import Tensor

from katz_graph.bench.gpu.clock import interleaved, repeated, seconds
from katz_graph.bench.gpu.errors import of_kernels
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult

SUSTAINED = 2.0  # seconds of load until the GPU's clock rates settle
BURST = 10  # consecutive products
LAUNCHES = 1000
WORST = 2.0  # × the reference's error, maximum


def run(setting: Setting, rows: Rows) -> BenchResult:
    rows.add("versions", **versions(setting.device))
    metrics = peaks(setting) | {"launch_seconds": launch_seconds(setting)}
    rows.add("peaks", **metrics)
    errors = of_kernels(setting.device)
    for name, error in errors.items():
        rows.add(name, error_of_reference=error)
    worst = max(errors.values())
    rows.judge("worst_error_of_reference", worst, at_most=WORST)
    return rows.result(**metrics)


def versions(device: torch.device) -> Mapping[str, Any]:
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
    }
    if device.type != "cuda":
        return found
    hardware = torch.cuda.get_device_properties(device)
    return found | {
        "device": hardware.name,
        "memory_gb": hardware.total_memory / 1e9,
        "multiprocessors": hardware.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
    }


def peaks(setting: Setting) -> dict[str, float]:
    """Returns the device's peak rates: operations per second of matrix products, in a burst and
    sustained; bytes per second of a copy on the device, and from pinned and pageable host memory.
    """
    device, side = setting.device, setting.product
    first, second = (torch.randn(side, side, device=device, dtype=setting.dtype) for _ in range(2))

    def product() -> Tensor:
        return first @ second

    operations = 2.0 * side**3
    burst = interleaved({"it": lambda: [product() for _ in range(BURST)]}, device, setting.rounds)
    source = torch.zeros(setting.array, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    host = torch.zeros(setting.array, dtype=torch.uint8)
    copies: dict[str, Callable[[], Tensor]] = {
        "copy": lambda: target.copy_(source),
        "from_pageable": lambda: target.copy_(host),
    }
    if device.type == "cuda":
        pinned = host.pin_memory()
        copies["from_pinned"] = lambda: target.copy_(pinned, non_blocking=True)
    took = interleaved(copies, device, setting.rounds)
    moved = {name: (2.0 if name == "copy" else 1.0) * setting.array for name in took}
    return {
        "burst_tflops": BURST * operations / burst["it"] / 1e12,
        "sustained_tflops": operations / _settled(product, device) / 1e12,
        **{f"{name}_gb_per_second": moved[name] / took[name] / 1e9 for name in took},
    }


def _settled(action: Callable[[], object], device: torch.device) -> float:
    """Returns the median seconds of an action under sustained load."""
    found, ends = [], time.perf_counter() + SUSTAINED
    while time.perf_counter() < ends:
        found.append(seconds(lambda: [action() for _ in range(BURST)], device) / BURST)
    return median(found[len(found) // 2 :])


def launch_seconds(setting: Setting) -> float:
    """Returns the seconds of a trivial kernel, averaged over a graph of LAUNCHES."""
    one = torch.zeros(1, device=setting.device)
    many = repeated(lambda: one.add_(1), setting.device, LAUNCHES)
    return interleaved({"it": many}, setting.device, setting.rounds)["it"] / LAUNCHES
