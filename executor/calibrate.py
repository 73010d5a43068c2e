"""How fast a device is, measured once and kept: arithmetic, memory, and what starting one kernel costs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from katz_graph.planner.program import Device

SIDE = 768  # of the square matrices multiplied
BYTES = 1 << 26  # of the array copied
SMALL = 4096  # elements of the tensor whose addition takes no time but its start


def calibrated(name: str, device: torch.device, dtype: torch.dtype, cache: Path | None, again: bool = False) -> Device:
    """The device's rates, from the file in `cache` when it was measured before under the same torch, dtype and number of threads.

    `again` measures whatever was kept.
    """
    key = f"{device}/{dtype}/{torch.get_num_threads()}/{torch.__version__}"
    file = None if cache is None else cache / "devices.json"
    known = _read(file)
    if again or key not in known:
        known[key] = measure(device, dtype)
        _write(file, known)
    return Device(name, *known[key])


def measure(device: torch.device, dtype: torch.dtype) -> tuple[float, float, float]:
    """Floating-point operations a second, bytes a second, seconds a kernel."""
    matrix = torch.randn(SIDE, SIDE, device=device, dtype=dtype)
    array = torch.zeros(BYTES // 4, device=device)
    target = torch.empty_like(array)
    small = torch.zeros(SMALL, device=device, dtype=dtype)
    arithmetic = _seconds(lambda: matrix @ matrix, device)
    memory = _seconds(lambda: target.copy_(array), device)
    start = _seconds(lambda: [small + small for _ in range(100)], device) / 100
    return 2 * SIDE**3 / arithmetic, 2 * BYTES / memory, start


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(7):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - started)
    return median(times[2:])


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
