"""A family that nobody else knows: one stage, which makes a prediction stronger by a strength for
each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.ir.device import Work
from katz_graph.models.costs.counts import Counts
from katz_graph.models.stages import Extent, Outputs, Stage
from katz_graph.node import Node
from katz_graph.wires import Prediction


def work(inputs: Mapping[str, Any], extent: Extent, counts: Counts) -> Work:
    return Work(flops=1e9)


def stronger(module: None, given: Mapping[str, Any]) -> Outputs:
    return (given["prediction"] * given["strength"].reshape(-1, 1, 1, 1),)


STRONGER = Stage(
    "made_up_stronger",
    work,
    "made_up_family:stronger",
    rows=("strength",),
    gives=("prediction",),
    costed=True,
    placeable=True,
    label="stronger",
    colour="#888888",
)


class Stronger(Node, category="test", stage=STRONGER.name):
    """A prediction times a strength."""

    strength: float = 1.0

    def run(self, prediction: Prediction) -> Prediction:
        raise NotImplementedError
