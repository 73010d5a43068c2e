"""Pass *hoist*: moves loop-invariant code out of the loop. Computes values that depend on no step
once per request and passes them as arguments.

Bit-equal to recomputing: the same functions run on the same tensors, only earlier.
"""

from __future__ import annotations

from dataclasses import replace

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, Conditioning, ConditioningEntry, ModelRecipe
from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import Operation, Previous, Ref
from katz_graph.models.family import family_of
from katz_graph.models.stage_registry import stage
from katz_graph.models.stages import Hoisted, Reader, Stage
from katz_graph.planner.region import stage_of
from katz_graph.planner.simulation.views import Views


def hoist(program: Program, prefix: bool = True) -> Program:
    """Moves the arguments that stages hoist to `before`, from which operations then read them.
    `prefix`: computes tokens before the picture there too, if no step changes them.
    """
    prefix = prefix and _in_chains(program)
    before: dict[str, Operation] = {}
    base: ModelRecipe = program.region.begin.inputs["model"]
    latent = program.region.begin.inputs["latent_image"]
    views, complete = Views(program), family_of(base.network).network.complete

    def prepare(made_by: Stage, found: Hoisted) -> Ref:
        """Adds a hoisted operation behind those that it reads, unless an equal one is there."""
        key, reads = found
        name = f"{made_by.name}:{key}"
        if name not in before:
            others = {} if made_by.first is None else made_by.first(reads)
            first = {argument: prepare(stage(of), one) for argument, (of, one) in others.items()}
            before[name] = Operation(name, made_by.name, made_by.name, {**reads, **first})
        return Ref(name)

    def rewrite(operation: Operation, variant: Variant, done: dict[str, Operation]) -> Operation:
        declared = stage_of(operation)
        if not declared.hoists:
            return operation
        inputs, part = dict(operation.inputs), views.part(operation, variant)
        entry = _one_entry(operation, inputs.pop("conditioning"), base.network)
        # samplers completed their entries in `expand`, explicit regions did not
        entry = complete(entry, base, latent, True)
        where = f"node {operation.id} ({operation.type})"
        features = inputs.get("features")
        made = done.get(features.operation) if isinstance(features, Ref) else None
        previous = {} if made is None else made.inputs
        model = inputs.get(declared.module)
        reader = Reader(where, base, model, entry, part, inputs, prefix, previous)
        stages = {argument: stage(name) for argument, name in declared.hoists.items()}
        for argument, made_by in stages.items():
            if (found := made_by.hoisted(reader)) is not None:
                inputs[argument] = prepare(made_by, found)
        replaced = {name for made_by in stages.values() for name in made_by.replaces}
        remaining = {name: value for name, value in inputs.items() if name not in replaced}
        return replace(operation, inputs=remaining)

    def rewritten(variant: Variant) -> Variant:
        done: dict[str, Operation] = {}
        for operation in variant.operations:
            done[operation.id] = rewrite(operation, variant, done)
        return replace(variant, operations=tuple(done.values()))

    variants = tuple(map(rewritten, program.variants))
    return replace(program, variants=variants, before=tuple(before.values()))


def _in_chains(program: Program) -> bool:
    """Returns whether all ranges of blocks read their features from operations of the same
    evaluation, so that the ranges of the tokens before the picture can follow each other.
    """
    features = (
        operation.inputs.get("features")
        for variant in program.variants
        for operation in variant.operations
    )
    return not any(isinstance(one, Previous) for one in features)


def _one_entry(
    operation: Operation, entries: Conditioning, network: Component
) -> ConditioningEntry:
    """Returns the only entry of a conditioning. Raises InputError for several entries, and for
    ControlNets, ranges, areas and masks, which have separate nodes in a region.
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
            f"{where}: the conditioning has a ControlNet, which acts only in a KSampler; link "
            f"{way_out} instead"
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
