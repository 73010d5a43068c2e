"""Resolves a value of an evaluation to its instance: follows loop-carried slots back to the
evaluation that computed the value.

Works on plain data, so the simulator, `emit` and the workers that execute instructions get the same
answer.
"""

from __future__ import annotations

from typing import Any

from katz_graph.ir.program import Instance, Program, Variant
from katz_graph.ir.region import Previous, Ref


class Instances:
    """Resolves the values of a program's evaluations."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._before = frozenset(operation.id for operation in program.before)
        self._variants = {
            index: variant for variant in program.variants for index in variant.evaluations
        }

    def variant(self, evaluation: int) -> Variant:
        return self._variants[evaluation]

    def of(self, value: Any, evaluation: int) -> Instance | Any:
        """Returns the instance of `value` in this evaluation. Returns a constant as it is,
        including a slot's initial value.
        """
        while isinstance(value, Previous):
            evaluation -= 1
            if evaluation < 0:
                return self._program.region.begin.inputs[f"initial_{value.slot}"]
            value = self._variants[evaluation].carried[value.slot]
        if not isinstance(value, Ref):
            return value
        return Instance(value, None if value.operation in self._before else evaluation)
