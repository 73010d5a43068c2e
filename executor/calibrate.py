"""How fast a device is, measured once and kept: arithmetic, memory, and what starting one kernel costs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from katz_graph.planner.program import Device

METHOD = 3  # what is measured below; another number when that changes
BYTES = 1 << 26  # of the array copied
WIDE, LARGE = 128, 64  # channels and side of a convolution that is all arithmetic
NARROW, SMALL = 32, 8  # of a block whose kernels take little but their start


def calibrated(name: str, device: torch.device, dtype: torch.dtype, cache: Path | None, again: bool = False) -> Device:
    """The device's rates, from the file in `cache` when it was measured before under the same torch, dtype and number of threads.

    `again` measures whatever was kept.
    """
    key = f"{METHOD}/{device}/{dtype}/{torch.get_num_threads()}/{torch.__version__}"
    file = None if cache is None else cache / "devices.json"
    known = _read(file)
    if again or key not in known:
        known[key] = measure(device, dtype)
        _write(file, known)
    return Device(name, *known[key], value_bytes=dtype.itemsize)


def measure(device: torch.device, dtype: torch.dtype) -> tuple[float, float, float]:
    """Floating-point operations a second, bytes a second, seconds a kernel: on the kinds of work that UNets consist of."""
    convolution = nn.Conv2d(WIDE, WIDE, 3, padding=1).to(device, dtype)
    large = torch.randn(1, WIDE, LARGE, LARGE, device=device, dtype=dtype)
    half = (nn.GroupNorm(8, NARROW), nn.SiLU(), nn.Conv2d(NARROW, NARROW, 3, padding=1))
    block = nn.Sequential(*half, *half).to(device, dtype)
    small = torch.randn(1, NARROW, SMALL, SMALL, device=device, dtype=dtype)
    array = torch.zeros(BYTES // 4, device=device)
    target = torch.empty_like(array)
    with torch.inference_mode():
        arithmetic = _seconds(lambda: convolution(large), device)
        memory = _seconds(lambda: target.copy_(array), device)
        starts = _seconds(lambda: [block(small) for _ in range(20)], device) / (20 * len(block))
    return 2 * WIDE**2 * 9 * LARGE**2 / arithmetic, 2 * BYTES / memory, starts


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(9):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - started)
    return min(times)  # of an undisturbed moment


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _read(file: Path | None) -> dict[str, tuple[float, float, float]]:
    """What was measured before; a file that cannot be read is measured anew."""
    try:
        entries = json.loads(file.read_text()) if file else {}
        return {key: (float(a), float(b), float(c)) for key, (a, b, c) in entries.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _write(file: Path | None, known: dict[str, tuple[float, float, float]]) -> None:
    if file is None:
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(known, indent=1))
        temporary.replace(file)
    except OSError:
        pass  # a cache that cannot be written only costs time
