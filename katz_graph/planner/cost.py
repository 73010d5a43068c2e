"""Pass *cost*: floating-point operations and bytes of every operation, free of any device; `Device.seconds` turns them into time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from katz_graph.planner.program import Program, Work
from katz_graph.planner.region import Operation

Count = Callable[[Operation, tuple[int, ...]], Work]


def cost(program: Program, shape: tuple[int, ...], count: Count) -> Program:
    """Fills `work` and `shape`; `count(operation, latent shape)` gives the work of one operation."""
    operations = {op.id: op for variant in program.variants for op in variant.operations} | {op.id: op for op in program.before}
    return replace(program, shape=shape, work={name: count(operation, shape) for name, operation in operations.items()})
