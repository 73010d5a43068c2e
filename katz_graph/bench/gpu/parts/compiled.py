"""Measures a step of diffusers' network under torch.compile, as a whole and block by block."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from katz_graph.bench.conditions import quiet
from katz_graph.bench.gpu import plain
from katz_graph.bench.gpu.clock import Action, per_step
from katz_graph.bench.gpu.models import write
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.testing.requests import local_engine, sample

BOUND = 1.1  # × the engine's seconds, minimum
RECOMPILES = 64  # with the default limit of 8, torch silently falls back to eager


def run(setting: Setting, rows: Rows) -> BenchResult:
    torch._dynamo.config.recompile_limit = RECOMPILES
    side, least = setting.sides[0], float("inf")
    counts = setting.steps // 2, setting.steps
    with tempfile.TemporaryDirectory() as name, quiet():
        files = write(Path(name), setting, whole=False)
        with local_engine(str(setting.device), batching=True, dtype=setting.dtype) as engine:
            ours = _per_step(
                setting,
                {
                    count: partial(sample, engine, files.request(setting, side, count))
                    for count in counts
                },
            )
        rows.add("ours", seconds=ours)
        for way, compiled in ways(setting).items():
            module = plain.network(setting, files.pipeline)
            began = time.perf_counter()
            called = compiled(module)
            actions = {
                count: plain.steps(setting, called, module.config, side, count) for count in counts
            }
            actions[counts[0]]()
            first = time.perf_counter() - began
            took = _per_step(setting, actions)
            least = min(least, took)
            rows.add(way, seconds=took, of_ours=took / ours, compiling_seconds=first)
            torch._dynamo.reset()
    rows.judge("best_compiled_of_ours", least / ours, at_least=BOUND)
    return rows.result(ours_seconds=ours)


def _per_step(setting: Setting, actions: Mapping[int, Action]) -> float:
    return per_step({"it": actions}, setting.device, setting.rounds)["it"]


def ways(setting: Setting) -> dict[str, Callable[[Any], Any]]:
    """Maps the name of each way to run diffusers' module to a function that returns the module's
    replacement.
    """

    def last(module: Any) -> Any:
        return module.to(memory_format=torch.channels_last)

    def blocks(module: Any) -> Any:
        module.compile_repeated_blocks(backend=setting.compiler)
        return module

    def whole(module: Any) -> Any:
        return torch.compile(module, backend=setting.compiler)

    def tuned(module: Any) -> Any:
        mode = "max-autotune" if setting.compiler == "inductor" else None
        return torch.compile(module, backend=setting.compiler, mode=mode)

    return {
        "eager": lambda module: module,
        "blocks": blocks,
        "whole": whole,
        "whole, channels-last": lambda module: whole(last(module)),
        "max-autotune, channels-last": lambda module: tuned(last(module)),
    }
