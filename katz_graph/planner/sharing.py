"""Decides which operations of one evaluation may share a call (`merge_key`), and which calls of
several requests may (`share_key`), and how long evaluations take then (`evaluation_runs`).

Both compare the stage's block range, patches and kinds of inputs, and the shapes of latent, texts
and references, but no values of tensors. A worker also compares the shapes of the tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from statistics import median
from typing import Any

from katz_graph.core.recipe import ModelRecipe, digest
from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.ir.program import (
    Call,
    EvaluationRun,
    Program,
    Variant,
    evaluation_key,
    reads_template,
)
from katz_graph.ir.region import Operation, Previous, Ref
from katz_graph.planner.region import stage_of
from katz_graph.planner.simulation.views import Views


def merge_key(program: Program, variant: Variant, operation: Operation, views: Views) -> Hashable:
    """Returns a key that is the same for operations that may share a call.

    They have the same stage, constants (such as the block range) and kinds of inputs, and read the
    same instance of the step, hence the same noise level and timestep. Their parts of the latent,
    texts and residuals have equal shapes; residuals may be averaged over the picture.
    """
    steps = tuple(
        view and view.step
        for index in views.telling(variant)
        for view in views.read(operation, index)
    )
    sizes = tuple(
        program.work[source].output_bytes if source is not None and source in program.work else None
        for source in (
            views.source(value, variant)
            for name, value in sorted(operation.inputs.items())
            if name.startswith("residuals_")
        )
    )
    shapes = _shapes(program, variant, operation, views)
    kinds = _kinds(operation, absorbs="")
    return operation.stage, _constants(operation), kinds, steps, sizes, shapes


def share_key(program: Program, variant: Variant, call: Call, views: Views) -> str:
    """Returns a key that is the same for calls that requests may share, or an empty string if the
    stage computes with more than tensors, or if an evaluation switches weights.

    Such requests have the same network, patches and parametrisation. They may differ in prompt,
    seed, sampler, steps, noise level, guidance, strengths and number of pictures, in LoRAs (which a
    worker compares, unless they apply by row), in the inputs that the stage absorbs before rows are
    stacked (`Stage.absorb`), and in the lengths of texts that it allows to be repeated
    (`Stage.repeats`).
    """
    operation = next(op for op in variant.operations if op.id == call.operations[0])
    stage = stage_of(operation)
    if not stage.shareable or _switches(variant):
        return ""
    left_out = {*stage.rows, stage.module, *stage.recipes}
    constants = [item for item in _constants(operation) if item[0] not in left_out]
    recipes = [
        (name, _network(value))
        for name in (stage.module, *stage.recipes)
        if (value := operation.inputs.get(name)) is not None
    ]
    begin = program.region.begin
    model: ModelRecipe = begin.inputs["model"]
    # the meaning of the model's output, and the range of its noise levels
    meaning = begin.type == "DiffusersStepBegin", model.scheduler, model.patches
    cells, forms, tokens = _shapes(program, variant, operation, views)
    key = (
        operation.stage,
        constants,
        recipes,
        meaning,
        program.shape[1:-2],
        _kinds(operation, stage.absorbs),
        cells,
        forms,
        () if stage.repeats else tokens,
        *_reused(program, variant, operation),
    )
    return digest(key)[:16]


def evaluation_runs(program: Program, seconds: Sequence[float]) -> Iterator[EvaluationRun]:
    """Yields the runs of evaluations of each kind. `seconds`: of each evaluation alone."""
    kinds = {
        index: kind
        for kind, variant in enumerate(program.variants)
        for index in variant.evaluations
    }
    for kind, run in groupby(range(len(program.schedule)), kinds.__getitem__):
        indices = list(run)
        alone = median(seconds[index] for index in indices)
        calls = [call for segment in program.segments[kind] for call in segment.calls]
        rows = max((_rows(program, call) for call in calls), default=1)
        key = evaluation_key(call.shares for call in calls)
        if len({call.device for call in calls}) > 1 or not key:
            yield EvaluationRun(len(indices), rows, alone)
            continue
        shared = [call for call in calls if call.shares]
        computed = alone - sum(call.waits for call in calls)
        apart = max(0.0, computed - sum(_seconds(program, call, 1.0) for call in shared))
        loads = _load_seconds(program, indices[0])  # of each request
        by_rows = tuple(
            max(loads * more, apart * more + sum(_seconds(program, call, more) for call in shared))
            for more in (bucket / rows for bucket in ROW_BUCKETS)
        )
        yield EvaluationRun(len(indices), rows, alone, key, by_rows)


def _rows(program: Program, call: Call) -> int:
    return sum(program.rows[name] for name in call.operations)


def _seconds(program: Program, call: Call, more: float) -> float:
    """Returns the planned seconds of a call with this many times its rows."""
    return call_seconds(program, call, max(round(_rows(program, call) * more), 1))


def call_seconds(program: Program, call: Call, rows: int) -> float:
    """Returns the planned seconds of a call with this number of rows, without waits for loads."""
    name = call.operations[0]
    work = program.work[name].batched(rows / program.rows[name])
    full = program.target.device(call.device).cost(program.keys[name], rows, work)
    return full * call.computed


def _load_seconds(program: Program, evaluation: int) -> float:
    """Returns the seconds of an evaluation's loads from a template."""
    if program.reuse is None or not reads_template(program, evaluation):
        return 0.0
    loads = program.reuse.loads.values()
    return max((sum(seconds for _, seconds in some) for some in loads), default=0.0)


def _reused(program: Program, variant: Variant, operation: Operation) -> tuple[Any, ...]:
    """Returns the layers that read a template, and the numbers of active tokens; nothing if all
    layers compute all tokens.
    """
    layers = program.reused.get(operation.id)
    reads = reads_template(program, variant.evaluations[0])
    if not layers or program.reuse is None or not reads:
        return ()
    return layers, tuple(sorted(program.reuse.active.items()))


def _switches(variant: Variant) -> bool:
    """Returns whether the operations of an evaluation need several sets of weights."""
    inputs = [value for op in variant.operations for value in op.inputs.values()]
    return len({value.weights for value in inputs if isinstance(value, ModelRecipe)}) > 1


def _network(recipe: Any) -> Any:
    """Returns the part of a recipe that a call computes with, without LoRAs."""
    return (recipe.network, recipe.patches) if isinstance(recipe, ModelRecipe) else recipe


def _constants(operation: Operation) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (name, value)
        for name, value in sorted(operation.inputs.items())
        if not isinstance(value, (Ref, Previous))
    )


def _kinds(operation: Operation, absorbs: str) -> tuple[tuple[str, str], ...]:
    """Returns the kinds of the inputs that operations produce, without absorbed ones."""
    return tuple(
        sorted(
            (name, type(value).__name__)
            for name, value in operation.inputs.items()
            if isinstance(value, (Ref, Previous)) and not (absorbs and name.startswith(absorbs))
        )
    )


def _shapes(
    program: Program, variant: Variant, operation: Operation, views: Views
) -> tuple[Hashable, Hashable, Hashable]:
    """Returns cells of the part of the latent, the forms of hoisted inputs, and text lengths."""
    part = views.part(operation, variant)
    # features have the text length of the operation that made them
    source = views.source(operation.inputs.get("features"), variant)
    made = [op for op in variant.operations if op.id == source]
    tokens = tuple(_tokens(program, one) for one in (operation, *made))
    cells = part.cells if part else program.shape[-2:]
    return cells, tuple(_forms(program, one) for one in (operation, *made)), tokens


def _tokens(program: Program, operation: Operation) -> int | None:
    """Returns an operation's text length in tokens."""
    text = operation.inputs.get("text")
    return program.tokens.get(text.operation) if isinstance(text, Ref) else None


def _forms(program: Program, operation: Operation) -> Hashable:
    """Returns the batch key of hoisted inputs: presence of a guidance embedding, shapes and
    position scheme of references.
    """
    read = {value.operation for value in operation.inputs.values() if isinstance(value, Ref)}
    forms = []
    for one in program.before:
        if one.id in read:
            seen = one.inputs.get("references")
            shapes = () if seen is None else tuple(tuple(x.pixels.shape) for x in seen.latents)
            placing = "" if seen is None else seen.placing
            forms.append((one.stage, one.inputs.get("guidance") is None, shapes, placing))
    return tuple(sorted(forms))
