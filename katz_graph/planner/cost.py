"""Pass *cost*: floating-point operations and bytes of every operation, free of any device; `Device.seconds` turns them into time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from katz_graph.planner.program import Program, Work
from katz_graph.planner.region import Operation, Ref
from katz_graph.recipe import ConditioningEntry

Count = Callable[[Operation, tuple[int, ...], int], Work]
Length = Callable[[ConditioningEntry], int]


def cost(program: Program, shape: tuple[int, ...], count: Count, length: Length) -> Program:
    """Fills `work` and `shape`. `count(operation, latent shape, tokens)` gives the work of one operation, `length` a prompt's tokens."""
    before = {op.id: op for op in program.before}
    lengths = {op.id: length(op.inputs["entry"][0]) for op in program.before if op.stage == "text_encoder"}

    def text_tokens(operation: Operation) -> int:
        text = operation.inputs.get("text")
        return lengths.get(text.operation if isinstance(text, Ref) else operation.id, 0)

    operations = {op.id: op for variant in program.variants for op in variant.operations} | before
    tokens = {name: text_tokens(operation) for name, operation in operations.items()}
    work = {name: count(operation, shape, tokens[name]) for name, operation in operations.items()}
    return replace(program, shape=shape, tokens=tokens, work=work)
