"""Measures a denoising step with guidance through the engine against diffusers' unmodified network;
the VAE; and the shares of kernels in the engine's step. Takes 2 min on an H200.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch._C._autograd import DeviceType

from katz_graph.bench.conditions import quiet
from katz_graph.bench.gpu import plain
from katz_graph.bench.gpu.clock import interleaved
from katz_graph.bench.gpu.models import Files, write
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.gpu.shares import shares
from katz_graph.bench.gpu.use import use_of
from katz_graph.bench.result import BenchResult
from katz_graph.executor.engine import DeviceEngine
from katz_graph.ir.region import Region
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.testing.requests import local_engine, sample

STEP_BOUND = 0.034  # seconds, at the largest size
EAGER_BOUND = 1.7  # × the engine's seconds, minimum
GAP_BOUND = 0.03
VAE_BOUND = 0.035  # seconds
PROFILED = 2, 6  # steps of the two profiled requests


def run(setting: Setting, rows: Rows) -> BenchResult:
    metrics: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, quiet():
        files = write(Path(name), setting, whole=False)
        module = plain.network(setting, files.pipeline)
        with local_engine(str(setting.device), batching=True, dtype=setting.dtype) as engine:
            for side in setting.sides:
                found = _steps(setting, engine, files, module, side)
                rows.add(f"step at {8 * side} pixels", **found, **use_of(engine))
                metrics = metrics or found
            decode = _decode(setting, engine, files)
            rows.add("VAE decode", seconds=decode)
            share = _shares(setting, engine, files, metrics["ours_seconds"])
            rows.add("shares of a step", **share)
    gap = share.get("gaps", 0.0)
    metrics = metrics | {"gaps": gap, "vae_seconds": decode}
    columns, table = rows.table()
    return BenchResult(
        "gpu",
        metrics["ours_seconds"] <= STEP_BOUND
        and metrics["eager_of_ours"] >= EAGER_BOUND
        and abs(gap) <= GAP_BOUND
        and decode <= VAE_BOUND,
        metrics,
        {
            "ours_seconds": f"<= {STEP_BOUND}",
            "eager_of_ours": f">= {EAGER_BOUND}",
            "gaps": f"within {GAP_BOUND} of 0",
            "vae_seconds": f"<= {VAE_BOUND}",
        },
        columns,
        table,
    )


def _steps(
    setting: Setting, engine: DeviceEngine, files: Files, module: torch.nn.Module, side: int
) -> dict[str, float]:
    """Returns the seconds of a step: the difference of two requests that differ only in their
    numbers of steps.
    """
    few, many = setting.steps // 2, setting.steps
    regions = {count: files.request(setting, side, count) for count in (few, many)}
    took = interleaved(
        {
            **{
                f"ours {count}": partial(sample, engine, region)
                for count, region in regions.items()
            },
            **{
                f"eager {count}": plain.steps(setting, module, module.config, side, count)
                for count in (few, many)
            },
        },
        setting.device,
        setting.rounds,
    )
    ours, eager = (
        (took[f"{way} {many}"] - took[f"{way} {few}"]) / (many - few) for way in ("ours", "eager")
    )
    return {"ours_seconds": ours, "eager_seconds": eager, "eager_of_ours": eager / ours}


def _shares(setting: Setting, engine: DeviceEngine, files: Files, step: float) -> dict[str, float]:
    """Returns the shares of kernel classes and of the longest kernels in a step, from two requests
    that differ only in their numbers of steps.
    """
    few, many = (
        _kernels(setting, engine, files.request(setting, setting.sides[0], count))
        for count in PROFILED
    )
    taken = {name: took - few.get(name, 0.0) for name, took in many.items()}
    return shares(taken, (PROFILED[1] - PROFILED[0]) * step)


def _kernels(setting: Setting, engine: DeviceEngine, region: Region) -> Mapping[str, float]:
    """Returns the seconds of the device's kernels in a request, by kernel name."""
    on_gpu = setting.device.type == "cuda"
    kind = torch.profiler.ProfilerActivity.CUDA if on_gpu else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[kind]) as profile:
        sample(engine, region)
    found: defaultdict[str, float] = defaultdict(float)
    for event in profile.events() or ():
        if event.device_type == DeviceType.CUDA:
            found[event.name] += (event.time_range.end - event.time_range.start) / 1e6
    return found


def _decode(setting: Setting, engine: DeviceEngine, files: Files) -> float:
    vae = pipeline_recipes(files.pipeline)[2]
    latent = torch.randn(1, 4, setting.sides[0], setting.sides[0])
    decode = {"it": lambda: engine.models.decode_latent(vae, latent)}
    return interleaved(decode, setting.device, setting.rounds)["it"]
