"""Names operations for display: the branch that a sampler's operation belongs to, and its label."""

from __future__ import annotations

import re
from dataclasses import dataclass

from katz_graph.ir.region import Operation, Region
from katz_graph.models.stage_registry import stages

PART = re.compile(r"(?:.*\.)?(?P<branch>[^.#-]+)-(?P<what>[^.#]+)(?:#\d+)?")
"""Matches the id of a sampler's operation: 5.positive2-controlnet1."""
NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True, slots=True)
class OperationName:
    """Holds the branch of an operation, and its name within the branch: ControlNet 2."""

    branch: str
    label: str


def name_of(operation: Operation, region: Region) -> OperationName:
    """Names an operation of a region, or one that was hoisted out of it."""
    stage = stages().get(operation.stage)
    label = (stage.label if stage else "") or operation.stage.replace("_", " ")
    found = PART.fullmatch(operation.id)
    if found is None or region.node_of(operation.id) == operation.id:
        return OperationName("", label if stage and stage.compute else operation.type)
    number = NUMBER.search(found["what"])
    return OperationName(found["branch"], f"{label} {number[0]}" if number else label)
