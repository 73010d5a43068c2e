"""Runs `katz profile`: measures devices, and a workflow's stages, LoRAs or similar prompts on them,
and stores the results.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.api.devices import torch_threads
from katz_graph.cli.options import ProfileOptions, WorkflowOptions
from katz_graph.cli.session import TerminalLines, check_writable, open_engine
from katz_graph.core.devices import AUTO, DeviceList, check_dtype, check_present, threads_for
from katz_graph.core.errors import InputError
from katz_graph.settings.environment import Settings
from katz_graph.settings.options import DeviceOptions

if TYPE_CHECKING:
    from katz_graph.executor.measure.lora_levels import LoraProfile
    from katz_graph.executor.measure.similar import SimilarProfile
    from katz_graph.executor.measure.stages import StageTime
    from katz_graph.ir.device import Device, NetworkLink


def check(workflow: Path | None, options: ProfileOptions) -> None:
    """Raises InputError for incompatible options, and for a picture that cannot be written."""
    if options.loras and workflow is None:
        raise InputError("--loras: name a workflow that has LoRAs")
    if options.similar and workflow is None:
        raise InputError("--similar: name a workflow")
    if options.similar and options.loras:
        raise InputError("--similar and --loras: choose one")
    if options.similar and not options.vary:
        raise InputError(
            "--similar: give further prompts, such as --vary '6.text=a red fox'; 20 or more, alike "
            "in pairs, as clients send them"
        )
    if options.vary and not (options.loras or options.similar):
        raise InputError("--vary needs --loras or --similar")
    if options.svg and not options.loras:
        raise InputError("--svg needs --loras")
    if options.svg is not None:
        check_writable(options.svg.absolute().parent, "--svg")


def profile_devices(options: DeviceOptions, as_json: bool) -> None:
    """Measures each device alone, and all devices of a host together. Ignores stored results."""
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
    """Measures every stage of a workflow's samplers on every device, alone and while the host's
    other devices run it, too.
    """
    # packs may print
    with open_engine(options, TerminalLines()) as engine, contextlib.redirect_stdout(sys.stderr):
        times = engine.profile(workflow, set=options.sets)
    if as_json:
        print(json.dumps([asdict(time) for time in times]))
    else:
        _print_table(times)


def profile_loras(workflow: Path, options: ProfileOptions, as_json: bool) -> None:
    """Measures how many first steps of a workflow's samplers can run without each LoRA."""
    # packs may print
    with open_engine(options, TerminalLines()) as engine, contextlib.redirect_stdout(sys.stderr):
        found = engine.profile_loras(
            workflow, set=options.sets, vary=options.vary, seeds=options.seeds
        )
    if options.svg is not None:
        options.svg.write_text(_curves(found), encoding="utf-8")
    if as_json:
        print(json.dumps([_figures(profile) for profile in found]))
    else:
        _print_profiles(found)


def profile_similar(workflow: Path, options: ProfileOptions, as_json: bool) -> None:
    """Measures from the pictures of how similar prompts a workflow's samplers may begin."""
    # packs may print
    with open_engine(options, TerminalLines()) as engine, contextlib.redirect_stdout(sys.stderr):
        found = engine.profile_similar(workflow, set=options.sets, vary=options.vary)
    if as_json:
        print(json.dumps([_similar_figures(profile) for profile in found]))
        return
    for profile in found:
        print(
            f"sampler {profile.sampler}: {len(profile.pairs)} pairs of prompts, similarity "
            f"{min((pair.similarity for pair in profile.pairs), default=0):.3f} and more"
        )
        for least, step in profile.earned:
            print(f"  similarity {least:.4f}: begins at step {step} of {len(profile.levels)}")
        if not profile.earned:
            print("  no similarity earns a later start; 10 pairs or more are needed")


def _similar_figures(profile: SimilarProfile) -> dict[str, Any]:
    """Returns a profile as JSON data."""
    return {
        "sampler": profile.sampler,
        "steps": len(profile.levels),
        "pairs": [asdict(pair) for pair in profile.pairs],
        "earned": [{"similarity": least, "step": step} for least, step in profile.earned],
    }


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
    """Returns a device's measured rates as JSON data."""
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
        f"{device.bytes_per_second / 1e9:.1f} GB/s, {device.seconds_per_kernel * 1e6:.1f} µs per "
        f"kernel, {threads} threads, {device.dtype}"
    )
    contention = (
        f"; with all devices busy arithmetic takes {rates['contention']:.2f}, memory "
        f"{rates['memory_contention']:.2f} times as long"
    )
    return line + (contention if several else "")


def _print_table(times: Sequence[StageTime]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("stage", "rows", "device")
    for column in ("alone ms", "busy ms", "roofline ms"):
        table.add_column(column, justify="right")
    for time in times:
        alone, busy, roofline = (
            "-" if one is None else f"{one * 1e3:.2f}"
            for one in (time.alone, time.busy, time.roofline)
        )
        table.add_row(time.stage, str(time.rows), time.device, alone, busy, roofline)
    Console(highlight=False).print(table)


def _figures(profile: LoraProfile) -> dict[str, Any]:
    """Returns a profile as JSON data."""
    return {
        "sampler": profile.sampler,
        "lora": profile.use.file.path,
        "network_strength": profile.use.network,
        "text_strength": profile.use.text,
        "first_noise_level": profile.begins,
        "noise_levels": profile.levels,
        "similarities": profile.similarities,
        "steps": profile.steps,
        "down_to": profile.level,
    }


def _print_profiles(profiles: Sequence[LoraProfile]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    for profile in profiles:
        table = Table(title=f"sampler {profile.sampler}, {_name(profile)}", title_justify="left")
        for column in ("after step", "noise level", "similarity"):
            table.add_column(column, justify="right")
        pairs = zip(profile.levels, profile.similarities, strict=True)
        for step, (level, similarity) in enumerate(pairs, start=1):
            table.add_row(str(step), f"{level:.3f}", f"{similarity:.4f}")
        console.print(table)
        console.print(
            f"K = {profile.steps} of {len(profile.levels)} steps may begin without the LoRA, at "
            f"noise levels down to {profile.level:.3f}"
            if profile.steps
            else "K = 0: no step may begin without the LoRA",
            soft_wrap=True,
        )


def _name(profile: LoraProfile) -> str:
    """Formats a LoRA's name with its strengths."""
    use = profile.use
    text = "" if use.text == use.network else f", text {use.text:g}"
    return f"{Path(use.file.path).stem} at {use.network:g}{text}"


def _curves(profiles: Sequence[LoraProfile]) -> str:
    """Draws a panel per sampler and a curve per LoRA, as SVG (Katz, Figure 12)."""
    from katz_graph.planner.report.line_chart import COLOURS, Curve, Panel, line_chart

    panels = []
    for sampler in dict.fromkeys(profile.sampler for profile in profiles):
        mine = [profile for profile in profiles if profile.sampler == sampler]
        curves = [
            Curve(
                f"{_name(profile)}: K = {profile.steps}",
                [*enumerate(map(float, profile.similarities), start=1)],
                colour,
            )
            for profile, colour in zip(mine, itertools.cycle(COLOURS), strict=False)
        ]
        panels.append(
            Panel(
                f"sampler {sampler}: latents with and without a LoRA",
                "step",
                "cosine similarity",
                curves,
                logarithmic=False,
                bottom=min(y for curve in curves for _, y in curve.points),
            )
        )
    return line_chart(panels)
