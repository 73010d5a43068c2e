"""Pass *fit*: whether the models of a program fit each other, told from their configurations before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from katz_graph.errors import InputError
from katz_graph.models.family import architecture, check_controlnet, check_text
from katz_graph.planner.program import Program
from katz_graph.planner.region import Operation, Ref


def fit(program: Program) -> Program:
    """The program as it is. InputError when a ControlNet or text encoder was made for another UNet, or a decoder gives no prediction."""
    for variant in program.variants:
        operations = {operation.id: operation for operation in variant.operations}
        for operation in variant.operations:
            _check_models(operation, operations)
            for _, ref in operation.references():
                _check_prediction(ref, operations)
        _check_prediction(variant.prediction, operations)
    return program


def _check_models(operation: Operation, operations: Mapping[str, Operation]) -> None:
    model = operation.inputs.get("model")
    if model is None or "conditioning" not in operation.inputs:
        return
    for entry in operation.inputs["conditioning"]:
        check_text(entry.clip, model)
    for name, ref in operation.references():
        source = operations.get(ref.operation)
        if name.startswith("residuals_") and source is not None and source.stage == "controlnet":
            check_controlnet(source.inputs["control_net"], model)


def _check_prediction(ref: Ref, operations: Mapping[str, Operation]) -> None:
    """Output 1 of a UNetDecoder is there only when its range reaches the last block."""
    source = operations.get(ref.operation)
    if source is None or source.stage != "unet_decoder" or ref.output != 1:
        return
    last, count = source.inputs["last_block"], architecture(source.inputs["model"].unet).up_blocks
    if last not in (-1, count - 1):
        raise InputError(f"node {source.id} ({source.type}): gives no prediction: its last_block is {last}, the model's {count - 1}")
