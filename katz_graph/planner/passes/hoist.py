"""Pass *hoist*: moves loop-invariant code out of the loop. Computes values that depend on no step
once per request and passes them as arguments.

Bit-equal to recomputing: the same functions run on the same tensors, only earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import (
    Component,
    Conditioning,
    ConditioningEntry,
    ModelRecipe,
    Picture,
    digest,
)
from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import Operation, Previous, Ref
from katz_graph.models.family import architecture, family_of
from katz_graph.models.stage_registry import stage, text_arguments
from katz_graph.planner.region import stage_of
from katz_graph.planner.simulation.views import Views


def hoist(program: Program) -> Program:
    """Sets `before` and makes stages read from it: text encodings, cross-attention keys and values,
    embeddings of reference images, and an inpainting model's view of its part of the picture.
    """
    before: dict[str, Operation] = {}

    def once(made_by: str, key: str, inputs: Mapping[str, Any]) -> Ref:
        name = f"{made_by}:{key}"
        before.setdefault(name, Operation(name, made_by, made_by, inputs))
        return Ref(name)

    base: ModelRecipe = program.region.begin.inputs["model"]
    latent = program.region.begin.inputs["latent_image"]
    views, pooled = Views(program), _takes_pooled(base.network)
    complete = family_of(base.network).network.complete

    def rewrite(operation: Operation, variant: Variant) -> Operation:
        hoists = stage_of(operation).hoists
        if not hoists:
            return operation
        inputs, part = dict(operation.inputs), views.part(operation, variant)
        entry = _one_entry(operation, inputs.pop("conditioning"), base.network)
        model = inputs.get(stage_of(operation).module)
        # samplers completed their entries in `expand`, hand-drawn regions did not
        entry = complete(entry, base, latent, True)
        text_key = digest((entry.encoding, entry.sizes, entry.guidance))[:12]
        inputs["text"] = once(
            hoists["text"],
            text_key,
            {
                "encoding": entry.encoding,
                "sizes": entry.sizes,
                "guidance": None if entry.guidance == "off" else entry.guidance,
                "pooled": pooled,
            },
        )
        for name, made_by in text_arguments(stage_of(operation)).items():
            key = f"{text_key}:{digest(model)[:12]}"
            reads = {"model": model, "text": inputs["text"]}
            if "cells" in stage(made_by).recipes:  # the result depends on part and references
                # a ControlNet sees no reference images
                references = entry.references if model is inputs.get("model") else None
                reads |= {"cells": part.cells if part else None, "references": references}
                key = f"{key}:{digest((reads['cells'], references))[:12]}"
            inputs[name] = once(made_by, key, reads)
        if "reference" in hoists:
            image, cells = _picture(operation, inputs.pop("image")), part.cells if part else None
            vae = inputs.pop("vae", None)
            key = ":".join([image.digest[:12], digest((model, vae))[:12], *map(str, cells or ())])
            reads = {"control_net": model, "image": image, "cells": cells}
            inputs["reference"] = once(
                hoists["reference"], key, reads if vae is None else {**reads, "vae": vae}
            )
            if "hint" in hoists:  # the ControlNet's embedding of the reference
                reads = {"control_net": model, "reference": inputs.pop("reference")}
                inputs["hint"] = once(hoists["hint"], key, reads)
        if "fill" in hoists:  # pad-token embedding of the model, for a ControlNet
            reads = {"model": inputs["model"]}
            inputs["fill"] = once(hoists["fill"], digest(inputs["model"])[:12], reads)
        if "concatenated" in hoists and entry.concatenated is not None:
            key = ":".join(
                [
                    digest(entry.concatenated)[:12],
                    digest(model)[:12],
                    *map(str, astuple(part) if part else ()),
                ]
            )
            inputs["concatenated"] = once(
                hoists["concatenated"],
                key,
                {"model": model, "concatenated": entry.concatenated, "part": part},
            )
        return replace(operation, inputs=inputs)

    variants = tuple(
        replace(one, operations=tuple(rewrite(operation, one) for operation in one.operations))
        for one in program.variants
    )
    return replace(program, variants=variants, before=tuple(before.values()))


def _takes_pooled(network: Component) -> bool:
    """Returns whether the model takes pooled text. Drops conditioning that a model does not
    take.
    """
    return architecture(network).pooled_width is not None


def _picture(operation: Operation, image: Any) -> Picture:
    if isinstance(image, (Ref, Previous)):
        raise InputError(
            f"node {operation.id} ({operation.type}), image: must come from outside the step "
            "region, it does not change in it"
        )
    return image if isinstance(image, Picture) else Picture.of(image)


def _one_entry(
    operation: Operation, entries: Conditioning, network: Component
) -> ConditioningEntry:
    """Returns the only entry of a conditioning. Raises InputError for several entries, and for
    ControlNets, ranges, areas and masks: inside a region these have separate nodes.
    """
    where = f"node {operation.id} ({operation.type}), conditioning"
    if len(entries) != 1:
        raise InputError(
            f"{where}: expected one prompt, got {len(entries)}; "
            "give each its own branch and join them with WeighPrediction and BlendPredictions"
        )
    (entry,) = entries
    if entry.control:
        way_out = (
            "TransformerControlBlock nodes to the TransformerBlocks"
            if family_of(network).network.stack
            else "a ControlNet node to the UNetDecoder"
        )
        raise InputError(
            f"{where}: it carries a ControlNet, which acts only in a KSampler; link {way_out} "
            "instead"
        )
    if (entry.start_percent, entry.end_percent) != (0.0, 1.0):
        raise InputError(
            f"{where}: it is limited to a part of the schedule; use StepWindow and Switch instead"
        )
    if entry.area is not None or entry.mask is not None:
        raise InputError(
            f"{where}: it is limited to a part of the picture; use StepCrop and "
            "WeighPrediction instead"
        )
    return entry
