"""Measures a denoising step with guidance through the engine against diffusers' unmodified network;
the VAE; and the shares of kernels in the engine's step.
"""

from __future__ import annotations

import math
import tempfile
from functools import partial
from pathlib import Path

import torch

from katz_graph.bench.conditions import quiet
from katz_graph.bench.gpu import plain
from katz_graph.bench.gpu.clock import Action, interleaved, per_step
from katz_graph.bench.gpu.models import Files, write
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.gpu.shares import shares_of_step
from katz_graph.bench.gpu.use import use_of
from katz_graph.bench.result import BenchResult
from katz_graph.executor.engine import DeviceEngine
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.testing.requests import local_engine, sample

STEP_BOUND = 0.030  # seconds, at the largest size
EAGER_BOUND = 1.7  # × the engine's seconds, minimum
SHARE_BOUNDS = {"norm": 0.06, "gate": 0.03, "gaps": 0.025}  # of a step, maximum
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
            requests = {
                count: partial(sample, engine, files.request(setting, setting.sides[0], count))
                for count in PROFILED
            }
            share = shares_of_step(setting.device, requests, metrics["ours_seconds"])
            rows.add("shares of a step", **share)
    rows.judge("ours_seconds", metrics["ours_seconds"], at_most=STEP_BOUND)
    rows.judge("eager_of_ours", metrics["eager_of_ours"], at_least=EAGER_BOUND)
    rows.judge("vae_seconds", decode, at_most=VAE_BOUND)
    for name, bound in SHARE_BOUNDS.items():
        part = share.get(name, 0.0) if share else math.nan  # without kernels nothing is known
        rows.judge(name, abs(part), at_most=bound)
    return rows.result(eager_seconds=metrics["eager_seconds"])


def _steps(
    setting: Setting, engine: DeviceEngine, files: Files, module: torch.nn.Module, side: int
) -> dict[str, float]:
    """Returns the seconds of a step through the engine and through diffusers' network."""
    counts = setting.steps // 2, setting.steps
    ours: dict[int, Action] = {
        count: partial(sample, engine, files.request(setting, side, count)) for count in counts
    }
    eager = {count: plain.steps(setting, module, module.config, side, count) for count in counts}
    took = per_step({"ours": ours, "eager": eager}, setting.device, setting.rounds)
    return {
        "ours_seconds": took["ours"],
        "eager_seconds": took["eager"],
        "eager_of_ours": took["eager"] / took["ours"],
    }


def _decode(setting: Setting, engine: DeviceEngine, files: Files) -> float:
    vae = pipeline_recipes(files.pipeline)[2]
    latent = torch.randn(1, 4, setting.sides[0], setting.sides[0])
    decode = {"it": lambda: engine.models.decode_latent(vae, latent)}
    return interleaved(decode, setting.device, setting.rounds)["it"]
