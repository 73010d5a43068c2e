"""`katz bench gpu`: measures full-size models with random weights on a GPU, in parts of a few
minutes.

Every figure is printed, and written to `PART.jsonl`, as soon as it is measured, so an interrupted
bench loses no results.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from katz_graph.bench.gpu.everything import run_parts
from katz_graph.bench.gpu.peers import peer_program
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import full_size
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError
from katz_graph.core.messages import suggest

PARTS: Mapping[str, float] = {
    "check": 30,
    "tests": 100,
    "start": 100,
    "serve": 160,
    "step": 120,
    "ipc": 40,
    "transformers": 200,
    "rows": 120,
    "edit": 120,
    "requests": 120,
    "pictures": 120,
    "kernels": 250,
    "compiled": 480,
}
"""Maps each part to the seconds expected on an H200, the most useful first."""
WITH_PEER = ("start", "serve", "pictures")
LACKING = {
    "write": "measures no tiles; use part kernels",
    "peer": f"measures no server; use one of {', '.join(WITH_PEER)}",
}
"""Reasons for which a part does not accept an option."""


def run(
    part: str | None = None,
    out: Path | None = None,
    write: Path | None = None,
    minutes: float | None = None,
    peer: str | None = None,
) -> BenchResult:
    """Runs one part, by default the first; with `minutes`, all that fit in this time, each in a
    separate process.

    `out`: folder of the rows' files and of the models that parts share. `write`: file for the tile
    table, for the part that measures tiles. `peer`: another server to measure, `comfyui=PATH`.
    Raises InputError if no GPU is available, the part is unknown, or it does not accept an option.
    """
    options: dict[str, Any] = {"write": write, "peer": peer_program(peer)}
    options = {name: value for name, value in options.items() if value is not None}
    if minutes is not None:
        if part is not None or write is not None:
            raise InputError(f"--minutes: runs all parts; omit --{'part' if part else 'write'}")
        _check_gpu()
        expected = {
            name: seconds * (2 if peer is not None and name in WITH_PEER else 1)
            for name, seconds in PARTS.items()
        }
        return run_parts(expected, 60 * minutes, out, peer)
    part = part or next(iter(PARTS))
    if part not in PARTS:
        raise InputError(
            f"--part: unknown part {part!r}{suggest(part, PARTS)}; choose one of {', '.join(PARTS)}"
        )
    measure = importlib.import_module(f"katz_graph.bench.gpu.parts.{part}").run
    for name in options.keys() - signature(measure).parameters.keys():
        raise InputError(f"--{name}: part {part} {LACKING[name]}")
    _check_gpu()
    with Rows(part, out) as rows, torch.inference_mode():
        result: BenchResult = measure(full_size(torch.device("cuda:0")), rows, **options)
    return result


def _check_gpu() -> None:
    if not torch.cuda.is_available():
        raise InputError("katz bench gpu needs a GPU, and torch sees no CUDA device")
