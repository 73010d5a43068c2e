"""Pass *cost*: floating-point operations and bytes of every operation, free of any device; `Device.cost` turns them into time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from katz_graph.planner.program import Program, Work
from katz_graph.planner.region import Operation, Ref, stage_of
from katz_graph.planner.views import Views
from katz_graph.recipe import Encoding, ModelRecipe, digest

Count = Callable[[Operation, tuple[int, ...], int], Work]
Length = Callable[[Encoding], int]


def cost(program: Program, shape: tuple[int, ...], count: Count, length: Length) -> Program:
    """Fills `work`, `keys`, `shape`, `cells` and `tokens`.

    `count(operation, latent shape, tokens)` gives an operation's work, `length` a text's tokens.
    """
    before = {op.id: op for op in program.before}
    lengths = {op.id: length(op.inputs["encoding"]) for op in program.before if stage_of(op).encodes_text}

    def text_tokens(operation: Operation) -> int:
        text = operation.inputs.get("text")
        return lengths.get(text.operation if isinstance(text, Ref) else operation.id, 0)

    operations = {op.id: op for variant in program.variants for op in variant.operations} | before
    tokens = {name: text_tokens(operation) for name, operation in operations.items()}
    cells = _cells(program, shape)
    work = {name: count(operation, (*shape[:2], *cells.get(name, shape[2:])), tokens[name]) for name, operation in operations.items()}
    sizes = {name: (*shape[:2], *cells.get(name, shape[2:]), tokens[name]) for name in operations}
    keys = {name: _key(operation, sizes[name], work[name]) for name, operation in operations.items()}
    return replace(program, shape=shape, tokens=tokens, cells=cells, work=work, keys=keys)


def _key(operation: Operation, sizes: tuple[int, ...], work: Work) -> str:
    """Equal for equal work: the counts of a stage tell configurations and number formats apart, whatever the weights are."""
    if work == Work():
        return ""
    inputs = operation.inputs
    blocks = inputs.get("first_block", 0), inputs.get("last_block", -1)
    residuals = sum(name.startswith("residuals_") and value is not None for name, value in inputs.items())
    patches = _patches(inputs)
    return f"{operation.stage}:{digest((sizes, blocks, residuals, patches, work))[:16]}"


def _patches(inputs: Mapping[str, object]) -> tuple[str, ...]:
    model = inputs.get("model")
    return tuple(type(patch).__name__ for patch in model.patches) if isinstance(model, ModelRecipe) else ()


def _cells(program: Program, shape: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Height and width of what each operation works on: a part of the latent behind a StepCrop, else all of it."""
    cells = {op.id: op.inputs["cells"] for op in program.before if op.inputs.get("cells") is not None}
    views = Views(program)
    for variant in program.variants:
        for operation in variant.operations:
            part = views.part(operation, variant)
            cells[operation.id] = part.cells if part else (shape[2], shape[3])
    return cells
