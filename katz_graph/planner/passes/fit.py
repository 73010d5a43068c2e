"""Pass *fit*: checks by configuration that the models of a program fit each other, before any is
loaded.
"""

from __future__ import annotations

from collections.abc import Mapping

from katz_graph.core.errors import InputError
from katz_graph.core.patches import (
    guidance_patch,
    network_wrapper,
    post_guidance_patches,
    weakened_guidance,
)
from katz_graph.core.recipe import ControlNetRecipe
from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import Operation, Ref
from katz_graph.models.family import check_controlnet, check_given, check_text, family_of
from katz_graph.models.stage_registry import stages
from katz_graph.models.text.recipe import clips, givens
from katz_graph.planner.region import stage_of


def fit(program: Program) -> Program:
    """Returns the program unchanged.

    Raises InputError if a ControlNet or text encoder was made for another network, a decoder
    outputs no prediction, or a patch would have no effect.
    """
    for variant in program.variants:
        _check_patches(program, variant)
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
    for clip in (
        clip for entry in operation.inputs["conditioning"] for clip in clips(entry.encoding)
    ):
        check_text(clip, model)
    for entry in operation.inputs["conditioning"]:
        for given in givens(entry.encoding):
            check_given(given, model)
    for name, ref in operation.references():
        source = operations.get(ref.operation)
        recipe = None if source is None else source.inputs.get("control_net")
        if name.startswith("residuals_") and isinstance(recipe, ControlNetRecipe):
            check_controlnet(recipe, model)


def _check_patches(program: Program, variant: Variant) -> None:
    """Checks that an explicit region has the nodes that apply its model's patches."""
    patches = getattr(program.region.begin.inputs.get("model"), "patches", ())
    if getattr(program.region.begin.inputs.get("model"), "controls", ()):
        raise InputError(
            f"node {program.region.begin.id}: the model has a ControlNet, which acts only in a "
            "KSampler; use TransformerControlTokens and TransformerControlBlock"
        )
    types = {operation.type for operation in variant.operations}
    if (
        (guidance_patch(patches) or post_guidance_patches(patches))
        and "CFGCombine" in types
        and "PatchedCFGCombine" not in types
    ):
        raise InputError(
            f"node {program.region.begin.id}: a patch of the model changes guidance; use "
            "PatchedCFGCombine, not CFGCombine"
        )
    wanted = len(weakened_guidance(patches))
    for operation in variant.operations:
        given = sum(name.startswith("weakened_") for name in operation.inputs)
        if operation.type == "PatchedCFGCombine" and given < wanted:
            raise InputError(
                f"node {operation.id} ({operation.type}), weakened_{given + 1}: a patch of the "
                "model needs a prediction without some blocks; link one"
            )
    parts = {part for one in stages().values() for part in one.stands_for}
    for operation in variant.operations:
        wrapped = network_wrapper(getattr(operation.inputs.get("model"), "patches", ())) is not None
        where, declared = f"node {operation.id} ({operation.type})", stage_of(operation)
        if wrapped and declared.name in parts:
            raise InputError(
                f"{where}: a patch of the model wraps the whole {_noun(operation)}; use "
                "WrappedUNet, or a KSampler"
            )
        if declared.stands_for and not wrapped:
            raise InputError(
                f"{where}: nothing wraps this model's {_noun(operation)}; use UNetEncoder, "
                "UNetMid, UNetDecoder"
            )


def _noun(operation: Operation) -> str:
    return family_of(operation.inputs["model"].network).network.noun


def _check_prediction(ref: Ref, operations: Mapping[str, Operation]) -> None:
    """Checks that a stage reaches its last block if another operation reads that block's output."""
    source = operations.get(ref.operation)
    if (
        source is None
        or (blocks := stage_of(source).blocks) is None
        or ref.output != blocks.last_gives
    ):
        return
    last, count = source.inputs["last_block"], blocks.count(source.inputs["model"].network)
    if last not in (-1, count - 1):
        raise InputError(
            f"node {source.id} ({source.type}): outputs no prediction: its last_block is {last}, "
            f"the model's {count - 1}"
        )
