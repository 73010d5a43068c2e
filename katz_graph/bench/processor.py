"""`katz bench processor`: compares a network call as workers compute it with the same call of
diffusers' module, on one CPU thread. The calls alternate. Measures the miniature network and random
ones of 31 and 70 M parameters. On CPUs that torch's BLAS library does not fully use
(`kernels.products`), layers compute with oneDNN and must be faster. On other CPUs they must not be
slower.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from diffusers import AutoModel
from torch import Tensor

from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.kernels import products
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.model_files import mini_models
from katz_graph.testing.random_models import make_pipeline, usual, usual_kind

ERROR = 2e-6  # of the output's range
MIN_SPEEDUP = {"miniature": 1.1, "31 M": 1.35, "70 M": 1.35}  # minimum speed-up with oneDNN
NOT_SLOWER = 0.98
SIZES: Mapping[str, tuple[int, ...]] = {"31 M": (64, 128, 256), "70 M": (96, 192, 384)}
RUNS = {"miniature": 80, "31 M": 15, "70 M": 9}
SIDE = {"miniature": 16, "31 M": 32, "70 M": 32}  # latent height and width


def run(runs: Mapping[str, int] | None = None) -> BenchResult:
    """Measures each network. `runs`: number of call pairs, by network name."""
    torch.set_num_threads(1)
    metrics: dict[str, Any] = {"by_onednn": products.BY_ONEDNN}
    bounds: dict[str, str] = {}
    rows: list[list[Any]] = []
    ok = True
    with quiet(), torch.no_grad(), tempfile.TemporaryDirectory() as name:
        for what, pairs in (runs or RUNS).items():
            folder = mini_models().pipeline
            if what in SIZES:
                make_pipeline(
                    folder := Path(name) / what, usual_kind(), seed=1, channels=SIZES[what]
                )
            times, error = compared(folder, SIDE[what], pairs)
            key, least = (
                what.replace(" ", ""),
                MIN_SPEEDUP[what] if products.BY_ONEDNN else NOT_SLOWER,
            )
            metrics |= {f"{key}_times": times, f"{key}_error": error}
            bounds |= {f"{key}_times": f">= {least}", f"{key}_error": f"<= {ERROR}"}
            ok = ok and times >= least and error <= ERROR
            rows.append([what, times, error])
    columns = ("network", "× diffusers' speed", "difference / range")
    return BenchResult("processor", ok, metrics, bounds, columns, rows)


def compared(folder: Path, side: int, pairs: int) -> tuple[float, float]:
    """Returns the median speed-up of our module over diffusers', and the largest difference of
    their outputs, relative to the range.
    """
    stock = AutoModel.from_pretrained(str(folder), subfolder=usual().part).eval()
    model, _, _ = pipeline_recipes(folder)
    ours = ModelStore().network(model.network, "cpu", torch.float32)
    given = _given(stock.config, side)
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: stock(**given, return_dict=False)[0],
        lambda: ours(**given, return_dict=False)[0],
    )
    for call in calls:  # warm-up
        call()
    expected, found = (call() for call in calls)
    ratios = []
    for _ in range(pairs):
        theirs, own = map(_seconds, calls)
        ratios.append(theirs / own)
    scale = float(expected.max() - expected.min())
    return median(ratios), float((expected - found).abs().max()) / scale


def _seconds(call: Callable[[], object]) -> float:
    """Returns the CPU seconds of a call, because other processes may use the machine."""
    started = time.process_time()
    call()
    return time.process_time() - started


def _given(config: Any, side: int) -> dict[str, Any]:
    """Draws the inputs of a network for both branches of guidance."""
    generator = torch.Generator().manual_seed(0)
    given: dict[str, Any] = {
        "sample": torch.randn(2, config.in_channels, side, side, generator=generator),
        "timestep": torch.tensor(500.0),
        "encoder_hidden_states": torch.randn(
            2, 77, config.cross_attention_dim, generator=generator
        ),
    }
    if config.addition_embed_type == "text_time":
        width = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        given["added_cond_kwargs"] = {
            "text_embeds": torch.randn(2, width, generator=generator),
            "time_ids": torch.full((2, 6), 64.0),
        }
    return given
