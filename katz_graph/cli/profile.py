"""Runs `katz profile`: measures devices, and a workflow's stages on them, and stores the costs that
the planner predicts with.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.api.devices import torch_threads
from katz_graph.cli.options import WorkflowOptions
from katz_graph.cli.session import TerminalLines, open_engine
from katz_graph.devices import AUTO, DeviceList, check_dtype, check_present, threads_for
from katz_graph.files.settings import Settings
from katz_graph.options import DeviceOptions

if TYPE_CHECKING:
    from katz_graph.executor.measure.stages import StageTime
    from katz_graph.ir.device import Device, NetworkLink


def profile_devices(options: DeviceOptions, as_json: bool) -> None:
    """Measures devices anew, whatever was kept: each alone, and several of a host together."""
    devices, dtype = options.device_list(), options.dtype or AUTO
    check_present(devices)
    check_dtype(dtype, devices)
    number = threads_for(devices, options.threads)
    measured, links = (
        _measured_together(devices, dtype, number)
        if devices.several
        else (_measured_here(devices, dtype, number), {})
    )
    if as_json:
        rates = [_rates(device, number) for device in measured]
        print(
            json.dumps(
                {"devices": rates, "links": _link_rates(links)} if devices.several else rates[0]
            )
        )
        return
    for device in measured:
        print(_line(device, number, devices.several))
    for (source, target), link in links.items():
        print(
            f"{source} -> {target}: {link.bytes_per_second / 1e9:.2f} GB/s, "
            f"{link.latency * 1e6:.0f} µs"
        )


def profile_workflow(workflow: Path, options: WorkflowOptions, as_json: bool) -> None:
    """Measures every stage of a workflow's samplers on every device, alone and while the others of
    its host do the same.
    """
    # what packs print
    with open_engine(options, TerminalLines()) as engine, contextlib.redirect_stdout(sys.stderr):
        times = engine.profile(workflow, set=options.sets)
    if as_json:
        print(json.dumps([asdict(time) for time in times]))
    else:
        _print_table(times)


def _measured_here(devices: DeviceList, dtype: str, threads: int) -> tuple[Device, ...]:
    import torch

    from katz_graph.executor.measure.device import calibrated
    from katz_graph.executor.measure.store import CostStore
    from katz_graph.executor.worker.config import dtype_for

    store = CostStore(Settings.read().cache)
    (choice,) = devices.choices
    with torch_threads(threads):
        return (
            calibrated(
                choice.name,
                torch.device(choice.device),
                dtype_for([choice.device], dtype),
                store,
                again=True,
            ),
        )


def _measured_together(
    devices: DeviceList, dtype: str, threads: int
) -> tuple[tuple[Device, ...], Mapping[tuple[str, str], NetworkLink]]:
    from katz_graph.executor.start import start_workers
    from katz_graph.executor.worker.config import WorkerConfig

    like, say = WorkerConfig(threads=threads), functools.partial(print, file=sys.stderr)
    with start_workers(devices, like, say, None, Settings.read().cache, dtype=dtype) as engine:
        engine.measure(again=True)
        engine.cluster.links = engine.measured_links(again=True)
        return engine.cluster.devices, engine.cluster.links


def _rates(device: Device, threads: int) -> dict[str, Any]:
    """Returns a device's measured rates, for scripts."""
    return {
        "device": device.name,
        "dtype": device.dtype,
        "threads": threads,
        "flops_per_second": device.flops_per_second,
        "bytes_per_second": device.bytes_per_second,
        "seconds_per_kernel": device.seconds_per_kernel,
        "contention": device.contention,
        "memory_contention": device.contention
        if device.memory_contention is None
        else device.memory_contention,
    }


def _link_rates(links: Mapping[tuple[str, str], NetworkLink]) -> list[dict[str, Any]]:
    return [
        {"from": source, "to": target, **asdict(link)} for (source, target), link in links.items()
    ]


def _line(device: Device, threads: int, several: bool) -> str:
    rates = _rates(device, threads)
    line = (
        f"{device.name}: {device.flops_per_second / 1e9:.1f} GFLOP/s, "
        f"{device.bytes_per_second / 1e9:.1f} GB/s, "
        f"{device.seconds_per_kernel * 1e6:.1f} µs a kernel, {threads} threads, {device.dtype}"
    )
    beside = (
        f"; beside busy neighbours arithmetic takes {rates['contention']:.2f}, memory "
        f"{rates['memory_contention']:.2f} times as long"
    )
    return line + (beside if several else "")


def _print_table(times: Sequence[StageTime]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("stage", "branches", "device")
    for column in ("alone ms", "busy ms", "roofline ms"):
        table.add_column(column, justify="right")
    for time in times:
        alone, busy, roofline = (
            "-" if one is None else f"{one * 1e3:.2f}"
            for one in (time.alone, time.busy, time.roofline)
        )
        table.add_row(time.stage, str(time.members), time.device, alone, busy, roofline)
    Console(highlight=False).print(table)
