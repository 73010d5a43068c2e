"""Measures a denoising step of transformers through the engine against diffusers' stock pipelines,
in bfloat16. Takes 2 min on an H200.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from katz_graph.bench.conditions import quiet
from katz_graph.bench.gpu.clock import interleaved
from katz_graph.bench.gpu.models import made_on
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.gpu.use import use_of
from katz_graph.bench.result import BenchResult
from katz_graph.testing.random_models import Kind, make_pipeline
from katz_graph.testing.requests import local_engine, sample
from katz_graph.testing.stock_pipelines import Asked, region, stock

BOUND = 1.0  # × the engine's seconds, minimum
DTYPE = torch.bfloat16
SPREAD = 0.02  # standard deviation of weights; keeps activations small at these widths
SEED = 7


def run(setting: Setting, rows: Rows) -> BenchResult:
    metrics: dict[str, float] = {}
    for kind in setting.transformers:
        with tempfile.TemporaryDirectory() as name, quiet():
            found, use = _steps(setting, kind, Path(name))
        rows.add(f"{kind} at {8 * setting.sides[0]} pixels", **found, **use)
        metrics |= {f"{kind}_{what}": figure for what, figure in found.items()}
    columns, table = rows.table()
    ratios = [f"{kind}_stock_of_ours" for kind in setting.transformers]
    return BenchResult(
        "gpu",
        all(metrics[name] >= BOUND for name in ratios),
        metrics,
        dict.fromkeys(ratios, f">= {BOUND}"),
        columns,
        table,
    )


def _steps(setting: Setting, kind: Kind, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the seconds of a step, from the difference of two requests that differ only in their
    numbers of steps; the difference of the longer request's latents from diffusers', relative to
    their standard deviation; and the counts of calls.
    """
    sizes, side = setting.transformers[kind], setting.sides[0]
    with made_on(setting.device, DTYPE, SEED):
        make_pipeline(folder, kind, SEED, with_t5=True, spread=SPREAD, **sizes)
    few, many = setting.steps // 4, setting.steps // 2
    noise = torch.randn(1, 16, side, side, generator=torch.Generator().manual_seed(SEED))
    asked = {count: Asked(folder, kind, noise, count) for count in (few, many)}
    with local_engine(str(setting.device), batching=True, dtype=DTYPE) as engine:
        ways: dict[str, Callable[[], Tensor]] = {}
        for count, one in asked.items():
            ways[f"ours {count}"] = partial(sample, engine, region(one, SEED, engine))
            ways[f"stock {count}"] = stock(one, "latent", setting.device, DTYPE)
        took = interleaved(ways, setting.device, setting.rounds)
        ours, theirs = (ways[f"{way} {many}"]().float().cpu() for way in ("ours", "stock"))
        use = use_of(engine)
    step, stock_step = (
        (took[f"{way} {many}"] - took[f"{way} {few}"]) / (many - few) for way in ("ours", "stock")
    )
    found = {
        "ours_seconds": step,
        "stock_seconds": stock_step,
        "stock_of_ours": stock_step / step,
        "difference": float((ours - theirs).std() / theirs.std()),
    }
    return found, use
