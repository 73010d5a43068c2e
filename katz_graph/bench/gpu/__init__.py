"""`katz bench gpu`: measures full-size models with random weights on a GPU, in parts of a few
minutes.

Every figure is printed, and written to `PART.jsonl`, as soon as it is measured, so an interrupted
bench loses no results.
"""

from __future__ import annotations

import importlib
from inspect import signature
from pathlib import Path

import torch

from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import full_size
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError
from katz_graph.core.messages import suggest

PARTS = ("check", "kernels", "step", "requests", "transformers", "compiled")


def run(part: str | None = None, out: Path | None = None, write: Path | None = None) -> BenchResult:
    """Runs a part, by default the first. `out`: folder of the rows' file. `write`: file for the
    tile table, for the part that measures tiles. Raises InputError if no GPU is available, the part
    is unknown, or the part does not accept `write`.
    """
    part = part or next(iter(PARTS))
    if part not in PARTS:
        raise InputError(
            f"--part: unknown part {part!r}{suggest(part, PARTS)}; choose one of {', '.join(PARTS)}"
        )
    measure = importlib.import_module(f"katz_graph.bench.gpu.{part}").run
    options = {} if write is None else {"write": write}
    if options.keys() - signature(measure).parameters.keys():
        raise InputError(f"--write: part {part} measures no tiles; use part kernels")
    if not torch.cuda.is_available():
        raise InputError("katz bench gpu needs a GPU, and torch sees no CUDA device")
    with Rows(part, out) as rows, torch.inference_mode():
        result: BenchResult = measure(full_size(torch.device("cuda:0")), rows, **options)
    return result
