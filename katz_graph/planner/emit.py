"""Pass *emit*: one instruction list per device, and the prediction that the plan states."""

from __future__ import annotations

from dataclasses import replace

from katz_graph.patches import opaque_patches
from katz_graph.planner.decompose import dependencies
from katz_graph.planner.program import Instruction, Prediction, Program
from katz_graph.planner.search import request_seconds
from katz_graph.recipe import ModelRecipe, digest


def emit(program: Program) -> Program:
    """Fills `instructions` and `prediction`."""
    (device,) = program.devices
    kind = {index: number for number, variant in enumerate(program.variants) for index in variant.evaluations}
    patch = [Instruction("patch", name) for name in weight_sets(program)]
    instructions = [*patch, *(Instruction("prepare", call.operations[0]) for call in program.before_calls)]
    for point in program.schedule:
        runs = (Instruction("run", segment.name, point.index) for segment in program.segments[kind[point.index]])
        instructions += [*runs, Instruction("advance", "x", point.index)]
    return replace(program, instructions={device.name: tuple(instructions)}, prediction=_predict(program))


def weight_sets(program: Program) -> dict[str, ModelRecipe]:
    """The loop's models that carry LoRAs, by a name for each set, in order of first use."""
    models = (op.inputs.get("model") for variant in program.variants for op in variant.operations)
    return {digest(model)[:12]: model for model in models if isinstance(model, ModelRecipe) and model.loras}


def pinned_by(program: Program) -> tuple[str, ...]:
    """The functions of packs in the program's models: they cannot be sent, nor captured in a graph."""
    bound = (op.inputs.get("model") for op in (program.region.begin, *program.region.operations))
    patches = (patch for model in bound if isinstance(model, ModelRecipe) for patch in opaque_patches(model.patches))
    return tuple(dict.fromkeys(f"{patch.kind} {patch.identity}" for patch in patches))


def commonest_variant(program: Program) -> int | None:
    """The number of the variant with most evaluations; None when nothing is evaluated (denoise 0)."""
    return max(range(len(program.variants)), key=lambda number: len(program.variants[number].evaluations), default=None)


def _predict(program: Program) -> Prediction:
    (device,) = program.devices
    seconds = {name: device.seconds(work) if work.flops else 0.0 for name, work in program.work.items()}
    before = sum(call.seconds for call in program.before_calls)
    ideal = sequential = before
    for variant, tree in zip(program.variants, program.trees, strict=True):
        count = len(variant.evaluations)
        ideal += count * tree.fold(lambda name: seconds[name])
        sequential += count * sum(seconds[name] for name in dependencies(variant).nodes)
    commonest = commonest_variant(program)
    period = 0.0 if commonest is None else sum(call.seconds for call in program.calls[commonest])
    binding = f"work on {device.name}: {period * 1e3:.2f} ms an evaluation"
    return Prediction(request_seconds(program), ideal, sequential, period, binding)
