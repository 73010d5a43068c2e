"""Pass *hoist*: loop-invariant code motion. What depends on no step is computed once per request and passed as an argument.

Bit-equal to recomputing: the same functions run on the same tensors, earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from katz_graph.errors import InputError
from katz_graph.planner.program import Program, Variant
from katz_graph.planner.region import Operation, Previous, Ref
from katz_graph.recipe import Conditioning, Picture, digest

PER_TEXT = {"kept": "keys_values", "added": "added_embedding"}  # what a stage takes -> what computes it from model and text
TAKES = {  # per stage with a text
    "unet_encoder": ("kept", "added"),
    "unet_mid": ("kept",),
    "unet_decoder": ("kept",),
    "controlnet": ("kept", "added"),
}


def hoist(program: Program) -> Program:
    """Fills `before` and makes stages read from it: text encodings, cross-attention keys and values, embeddings of reference images."""
    before: dict[str, Operation] = {}

    def once(stage: str, key: str, inputs: Mapping[str, Any]) -> Ref:
        name = f"{stage}:{key}"
        before.setdefault(name, Operation(name, stage, stage, inputs))
        return Ref(name)

    def rewrite(operation: Operation) -> Operation:
        if operation.stage not in TAKES:
            return operation
        inputs = dict(operation.inputs)
        entry = inputs.pop("conditioning")
        _check_entry(operation, entry)
        model = inputs.get("model") or inputs.get("control_net")
        text_key = digest(entry)[:12]
        inputs["text"] = once("text_encoder", text_key, {"entry": entry})
        for name in TAKES[operation.stage]:
            inputs[name] = once(PER_TEXT[name], f"{text_key}:{digest(model)[:12]}", {"model": model, "text": inputs["text"]})
        if operation.stage == "controlnet":
            image = _picture(operation, inputs.pop("image"))
            key = f"{image.digest[:12]}:{digest(model)[:12]}"
            inputs["reference"] = once("controlnet_reference", key, {"control_net": model, "image": image})
        return replace(operation, inputs=inputs)

    def rewritten(variant: Variant) -> Variant:
        return replace(variant, operations=tuple(rewrite(operation) for operation in variant.operations))

    variants = tuple(rewritten(variant) for variant in program.variants)
    return replace(program, variants=variants, before=tuple(before.values()))


def _picture(operation: Operation, image: Any) -> Picture:
    if isinstance(image, (Ref, Previous)):
        raise InputError(f"node {operation.id} ({operation.type}), image: must come from outside the step region, it does not change in it")
    return image if isinstance(image, Picture) else Picture.of(image)


def _check_entry(operation: Operation, entries: Conditioning) -> None:
    """A stage takes one prompt; what else a conditioning can carry has nodes of its own inside a region."""
    where = f"node {operation.id} ({operation.type}), conditioning"
    if len(entries) != 1:
        raise InputError(f"{where}: expected one prompt, got {len(entries)}; give each its own branch and join them with BlendPredictions")
    if entries[0].control:
        raise InputError(
            f"{where}: it carries a ControlNet, which acts only in a KSampler; link a ControlNet node to the UNetDecoder instead"
        )
    if (entries[0].start_percent, entries[0].end_percent) != (0.0, 1.0):
        raise InputError(f"{where}: it is limited to a part of the schedule; use StepWindow and Switch instead")
