"""Counts the work of operations from the configurations of their models: no weights are read and nothing is run."""

from __future__ import annotations

from katz_graph.models.counts import Counts
from katz_graph.models.stages import Extent
from katz_graph.planner.program import Work
from katz_graph.planner.region import Operation, stage_of


def count_work(operation: Operation, shape: tuple[int, ...], tokens: int, value_bytes: int, counts: Counts) -> Work:
    """The work of one operation for a latent [B, C, h, w] and a text of so many tokens; nothing for what computes next to nothing.

    InputError for a stage that nobody declared.
    """
    return stage_of(operation).count(operation.inputs, Extent(shape, tokens, value_bytes), counts) or Work()
