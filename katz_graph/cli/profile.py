"""`katz profile`: measures a device and keeps what the planner predicts with."""

from __future__ import annotations

import json

from katz_graph.cli.session import dtype_of, one_device, use_threads
from katz_graph.settings import Settings


def profile(devices: str, threads: int | None, as_json: bool) -> None:
    """Measure one device anew, whatever was kept before."""
    name = one_device(devices)
    import torch

    from katz_graph.executor.calibrate import calibrated

    use_threads(name, threads)
    device = calibrated(name, torch.device(name), dtype_of(name), Settings.read().cache, again=True)
    if as_json:
        rates = {
            "flops_per_second": device.flops_per_second,
            "bytes_per_second": device.bytes_per_second,
            "seconds_per_kernel": device.seconds_per_kernel,
        }
        print(json.dumps({"device": name, "threads": torch.get_num_threads(), **rates}))
        return
    print(
        f"{name}: {device.flops_per_second / 1e9:.1f} GFLOP/s, {device.bytes_per_second / 1e9:.1f} GB/s, "
        f"{device.seconds_per_kernel * 1e6:.1f} µs a kernel, {torch.get_num_threads()} threads"
    )
