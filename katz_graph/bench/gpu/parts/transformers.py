"""Measures a denoising step of transformers through the engine, in bfloat16, against diffusers'
stock pipelines: as they are, and compiled block by block. Lists the kernels of a step by kind.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from katz_graph.bench.conditions import quiet
from katz_graph.bench.gpu.clock import per_step
from katz_graph.bench.gpu.models import made_on
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.gpu.shares import shares_of_step
from katz_graph.bench.gpu.use import use_of
from katz_graph.bench.result import BenchResult
from katz_graph.testing.random_models import Kind, make_pipeline
from katz_graph.testing.requests import local_engine, sample
from katz_graph.testing.stock_pipelines import Asked, loaded, region, stock

DTYPE = torch.bfloat16
SPREAD = 0.02  # standard deviation of weights; keeps activations small at these widths
SEED = 7
ROUNDS = 3  # maximum
RECOMPILES = 64  # with the default limit of 8, torch silently falls back to eager


@dataclass(frozen=True, slots=True)
class Bound:
    """Holds the maximum of our step: in seconds, on one kind of card, and × the peers' steps."""

    seconds: float | None = None
    card: str = ""
    of_stock: float | None = None
    of_compiled: float | None = None


# the most useful first
BOUNDS: Mapping[Kind, Bound] = {
    "flux": Bound(seconds=0.118, card="H100", of_compiled=0.95),
    "sd35": Bound(of_stock=0.75),
    "z_image": Bound(of_stock=0.8),
}


def run(setting: Setting, rows: Rows) -> BenchResult:
    torch._dynamo.config.recompile_limit = RECOMPILES
    metrics: dict[str, float] = {}
    on_gpu = setting.device.type == "cuda"
    card = torch.cuda.get_device_name(setting.device) if on_gpu else ""
    for kind in (one for one in BOUNDS if one in setting.transformers):
        with tempfile.TemporaryDirectory() as name, quiet():
            found = _measured(setting, kind, Path(name), rows)
        bound = BOUNDS[kind]
        if bound.seconds is not None and bound.card in card:
            rows.judge(f"{kind}_ours_seconds", found.pop("ours_seconds"), at_most=bound.seconds)
        for peer, most in (("stock", bound.of_stock), ("compiled", bound.of_compiled)):
            if most is not None:
                rows.judge(f"{kind}_of_{peer}", found.pop(f"of_{peer}"), at_most=most)
        metrics |= {f"{kind}_{what}": figure for what, figure in found.items()}
    return rows.result(**metrics)


def _measured(setting: Setting, kind: Kind, folder: Path, rows: Rows) -> dict[str, float]:
    """Returns the seconds of a step in each way, and the difference of the longer request's latents
    from diffusers', relative to their standard deviation.
    """
    sizes, side = setting.transformers[kind], setting.sides[0]
    what = f"{kind} at {8 * side} pixels"
    with made_on(setting.device, DTYPE, SEED):
        make_pipeline(folder, kind, SEED, with_t5=True, spread=SPREAD, **sizes)
    few, many = setting.steps // 4, setting.steps // 2
    noise = torch.randn(1, 16, side, side, generator=torch.Generator().manual_seed(SEED))
    asked = {count: Asked(folder, kind, noise, count) for count in (few, many)}
    pipeline = loaded(asked[few], setting.device, DTYPE)

    rounds = min(ROUNDS, setting.rounds)
    with local_engine(str(setting.device), batching=True, dtype=DTYPE) as engine:
        ours = {
            count: partial(sample, engine, region(one, SEED, engine))
            for count, one in asked.items()
        }
        theirs = {
            count: stock(one, "latent", setting.device, DTYPE, pipeline)
            for count, one in asked.items()
        }
        took = per_step({"ours": ours, "stock": theirs}, setting.device, rounds)
        latents, stock_latents = (way[many]().float().cpu() for way in (ours, theirs))
        found = {
            "ours_seconds": took["ours"],
            "stock_seconds": took["stock"],
            "of_stock": took["ours"] / took["stock"],
            "difference": float((latents - stock_latents).std() / stock_latents.std()),
        }
        rows.add(what, **found, **use_of(engine))
        rows.add(f"{what}, shares of a step", **shares_of_step(setting.device, ours, took["ours"]))
        began = time.perf_counter()
        _compile_blocks(pipeline.transformer, setting.compiler)
        theirs[few]()
        compiling = time.perf_counter() - began
        again = per_step({"ours": ours, "compiled": theirs}, setting.device, rounds)
    compared = {
        "compiled_seconds": again["compiled"],
        "of_compiled": again["ours"] / again["compiled"],
    }
    rows.add(
        f"{what}, diffusers compiled by blocks",
        ours_seconds=again["ours"],
        **compared,
        compiling_seconds=compiling,
    )
    torch._dynamo.reset()
    return found | compared


def _compile_blocks(module: nn.Module, backend: str) -> None:
    """Compiles each block in the lists of a module, as diffusers' `compile_repeated_blocks` does
    for the models that name their blocks.
    """
    for blocks in module.children():
        for block in blocks if isinstance(blocks, nn.ModuleList) else ():
            block.compile(backend=backend)
