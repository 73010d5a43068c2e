"""`katz bench edit`: edits whose transformer layers compute the tokens under a mask only, and read
the others from a template's cached activations in memory, against full computation.

Part `speed` (`edit_speed`) times evaluations of networks with random weights. Part `quality`
(`edit_quality`) judges pictures of the miniature models. Both run by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from katz_graph.bench import edit_quality, edit_speed
from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError

PARTS: Mapping[str, Callable[[], BenchResult]] = {
    "speed": edit_speed.run,
    "quality": edit_quality.run,
}


def run(part: str | None = None) -> BenchResult:
    """Runs a part, by default both."""
    if part not in (None, *PARTS):
        raise InputError(f"--part {part}: expected one of {', '.join(PARTS)}")
    torch.set_num_threads(1)
    with quiet():
        if part is not None:
            return PARTS[part]()
        speed, quality = (measure() for measure in PARTS.values())
    return replace(
        speed,
        ok=speed.ok and quality.ok,
        metrics={**speed.metrics, **quality.metrics},
        bounds={**speed.bounds, **quality.bounds},
        svg=quality.svg,
        notes=[", ".join(map(str, row)) for row in (quality.columns, *quality.table)],
    )
