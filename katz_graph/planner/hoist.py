"""Pass *hoist*: loop-invariant code motion. What depends on no step is computed once per request and passed as an argument.

Bit-equal to recomputing: the same functions run on the same tensors, earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from katz_graph.errors import InputError
from katz_graph.planner.program import Program, Variant
from katz_graph.planner.region import Operation, Previous, Ref, cropped_cells
from katz_graph.recipe import Conditioning, ConditioningEntry, Picture, digest

PER_TEXT = {"kept": "keys_values", "added": "added_embedding"}  # what a stage takes -> what computes it from model and text
TAKES = {  # per stage with a text
    "unet_encoder": ("kept", "added"),
    "unet_mid": ("kept",),
    "unet_decoder": ("kept",),
    "unet_wrapped": ("kept", "added"),
    "controlnet": ("kept", "added"),
}


def hoist(program: Program) -> Program:
    """Fills `before` and makes stages read from it: text encodings, cross-attention keys and values, embeddings of reference images."""
    before: dict[str, Operation] = {}

    def once(stage: str, key: str, inputs: Mapping[str, Any]) -> Ref:
        name = f"{stage}:{key}"
        before.setdefault(name, Operation(name, stage, stage, inputs))
        return Ref(name)

    def rewrite(operation: Operation, crops: Mapping[str, tuple[int, int]]) -> Operation:
        if operation.stage not in TAKES:
            return operation
        inputs = dict(operation.inputs)
        entry = _one_entry(operation, inputs.pop("conditioning"))
        model = inputs.get("model") or inputs.get("control_net")
        text_key = digest((entry.encoding, entry.sizes))[:12]
        inputs["text"] = once("text_encoder", text_key, {"encoding": entry.encoding, "sizes": entry.sizes})
        for name in TAKES[operation.stage]:
            inputs[name] = once(PER_TEXT[name], f"{text_key}:{digest(model)[:12]}", {"model": model, "text": inputs["text"]})
        if operation.stage == "controlnet":
            image, step = _picture(operation, inputs.pop("image")), inputs["step"]
            cells = crops.get(step.operation) if isinstance(step, Ref) else None
            key = ":".join([image.digest[:12], digest(model)[:12], *map(str, cells or ())])
            inputs["reference"] = once("controlnet_reference", key, {"control_net": model, "image": image, "cells": cells})
        if operation.stage in ("unet_encoder", "unet_wrapped") and entry.concatenated is not None:
            key = f"{digest(entry.concatenated)[:12]}:{digest(model)[:12]}"
            inputs["concatenated"] = once("concatenated", key, {"model": model, "concatenated": entry.concatenated})
        return replace(operation, inputs=inputs)

    def rewritten(variant: Variant) -> Variant:
        crops = {operation.id: cells for operation in variant.operations if (cells := cropped_cells(operation)) is not None}
        return replace(variant, operations=tuple(rewrite(operation, crops) for operation in variant.operations))

    variants = tuple(rewritten(variant) for variant in program.variants)
    return replace(program, variants=variants, before=tuple(before.values()))


def _picture(operation: Operation, image: Any) -> Picture:
    if isinstance(image, (Ref, Previous)):
        raise InputError(f"node {operation.id} ({operation.type}), image: must come from outside the step region, it does not change in it")
    return image if isinstance(image, Picture) else Picture.of(image)


def _one_entry(operation: Operation, entries: Conditioning) -> ConditioningEntry:
    """A stage takes one prompt; what else a conditioning can carry has nodes of its own inside a region."""
    where = f"node {operation.id} ({operation.type}), conditioning"
    if len(entries) != 1:
        raise InputError(
            f"{where}: expected one prompt, got {len(entries)}; "
            "give each its own branch and join them with WeighPrediction and BlendPredictions"
        )
    (entry,) = entries
    if entry.control:
        raise InputError(
            f"{where}: it carries a ControlNet, which acts only in a KSampler; link a ControlNet node to the UNetDecoder instead"
        )
    if (entry.start_percent, entry.end_percent) != (0.0, 1.0):
        raise InputError(f"{where}: it is limited to a part of the schedule; use StepWindow and Switch instead")
    if entry.area is not None or entry.mask is not None:
        raise InputError(f"{where}: it is limited to a part of the picture; use StepCrop and WeighPrediction instead")
    return entry
