"""Pass *hoist*: loop-invariant code motion. What depends on no step is computed once per request and passed as an argument.

Bit-equal to recomputing: the same functions run on the same tensors, earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from katz_graph.planner.program import Program, Variant
from katz_graph.planner.region import Operation, Ref
from katz_graph.recipe import digest

ATTENDING = ("unet_encoder", "unet_mid", "unet_decoder", "controlnet")  # stages with cross-attention


def hoist(program: Program) -> Program:
    """Fills `before` and makes stages read from it: text encodings, cross-attention keys and values, embeddings of reference images."""
    before: dict[str, Operation] = {}

    def once(stage: str, key: str, inputs: Mapping[str, Any]) -> Ref:
        name = f"{stage}:{key}"
        before.setdefault(name, Operation(name, stage, stage, inputs))
        return Ref(name)

    def rewrite(operation: Operation) -> Operation:
        if operation.stage not in ATTENDING:
            return operation
        inputs = dict(operation.inputs)
        entry = inputs.pop("conditioning")
        model = inputs.get("model") or inputs.get("control_net")
        text_key = digest(entry)[:12]
        inputs["text"] = once("text_encoder", text_key, {"entry": entry})
        inputs["kept"] = once("keys_values", f"{text_key}:{digest(model)[:12]}", {"model": model, "text": inputs["text"]})
        if operation.stage == "controlnet":
            image = inputs.pop("image")
            key = f"{image.digest[:12]}:{digest(model)[:12]}"
            inputs["reference"] = once("controlnet_reference", key, {"control_net": model, "image": image})
        return replace(operation, inputs=inputs)

    def rewritten(variant: Variant) -> Variant:
        return replace(variant, operations=tuple(rewrite(operation) for operation in variant.operations))

    variants = tuple(rewritten(variant) for variant in program.variants)
    return replace(program, variants=variants, before=tuple(before.values()))
