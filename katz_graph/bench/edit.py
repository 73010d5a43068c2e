"""`katz bench edit`: edits whose transformer layers compute the tokens under a mask only, and read
the others from a template's cached activations in memory, against full computation.

Part `speed` (`edit_speed`) times evaluations of networks with random weights.
"""

from __future__ import annotations

import torch

from katz_graph.bench import edit_speed
from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError

PARTS = ("speed",)


def run(part: str | None = None) -> BenchResult:
    """Runs a part, by default all."""
    if part not in (None, *PARTS):
        raise InputError(f"--part {part}: expected one of {', '.join(PARTS)}")
    torch.set_num_threads(1)
    with quiet():
        return edit_speed.run()
