"""Whether the models of a region fit each other, told from their configurations before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from katz_graph.models.family import check_controlnet
from katz_graph.planner.region import SWITCH, Operation, Ref, Region


def check_controlnets(region: Region) -> None:
    """InputError when a ControlNet's residuals reach a UNet of another shape; switches are looked through."""
    operations = {operation.id: operation for operation in region.operations}
    for operation in region.operations:
        if operation.stage == "unet_decoder":
            for name, value in operation.inputs.items():
                if name.startswith("residuals_"):
                    for source in _sources(value, operations):
                        check_controlnet(source.inputs["control_net"], operation.inputs["model"])


def _sources(value: Any, operations: Mapping[str, Operation]) -> Iterator[Operation]:
    pending = [value]
    while pending:
        current = pending.pop()
        source = operations.get(current.operation) if isinstance(current, Ref) else None
        if source is None:
            continue
        if source.stage == SWITCH:
            pending += [source.inputs.get("on_true"), source.inputs.get("on_false")]
        elif source.stage == "controlnet":
            yield source
