"""`katz bench edit`: edits whose transformer layers compute the tokens under a mask only, and read
the others from a template's cached activations, against full computation.

Part `speed` (`edit_speed`) times evaluations of networks with random weights. Part `quality`
(`edit_quality`) judges pictures of the miniature models. Both read activations from memory. Part
`store` (`edit_store`) performs random operations on the store of templates. All of these run by
default. Part `similar` (`edit_similar`) begins requests from pictures of similar prompts. Part
`pipeline` (`edit_pipeline`) times whole requests that read their template over a slow link. Part
`load` (`edit_load`) serves edits that arrive at random times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from katz_graph.bench import (
    edit_load,
    edit_pipeline,
    edit_quality,
    edit_similar,
    edit_speed,
    edit_store,
)
from katz_graph.bench.conditions import quiet
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError

PARTS: Mapping[str, Callable[[], BenchResult]] = {
    "speed": edit_speed.run,
    "quality": edit_quality.run,
    "store": edit_store.store,
    "similar": edit_similar.run,
    "pipeline": edit_pipeline.run,
    "load": edit_load.run,
}
BY_DEFAULT = ("speed", "quality", "store")


def run(part: str | None = None) -> BenchResult:
    """Runs a part, by default those of `BY_DEFAULT`."""
    if part not in (None, *PARTS):
        raise InputError(f"--part {part}: expected one of {', '.join(PARTS)}")
    torch.set_num_threads(1)
    with quiet():
        if part is not None:
            return PARTS[part]()
        return _together([PARTS[name]() for name in BY_DEFAULT])


def _together(results: list[BenchResult]) -> BenchResult:
    """Returns one result with the table of the first part. Those of the others become notes."""
    first, *others = results
    return replace(
        first,
        ok=all(one.ok for one in results),
        metrics={name: value for one in results for name, value in one.metrics.items()},
        bounds={name: bound for one in results for name, bound in one.bounds.items()},
        svg="".join(one.svg for one in results),
        notes=[
            *(note for one in results for note in one.notes),
            *(
                ", ".join(map(str, row))
                for one in others
                if one.table
                for row in (one.columns, *one.table)
            ),
        ],
    )
