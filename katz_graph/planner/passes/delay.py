"""Runs a ControlNet one evaluation behind: its residuals become a loop-carried value (Katz, section
5: pipelined asynchronous parallelization).

The first evaluation in which it acts waits for it; what no evaluation reads is not computed.
Staleness counts in evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import SLOTS, Previous, Ref
from katz_graph.planner.passes.variants import needed_operations, specialised


def delay(program: Program, sessions: Sequence[str]) -> Program:
    """Makes readers of the ControlNet operations `sessions` read what the evaluation before
    computed, where one did.
    """
    slots = {name: SLOTS + number for number, name in enumerate(sessions, start=1)}
    before = {index: variant for variant in program.variants for index in variant.evaluations}

    def stale(index: int) -> frozenset[str]:
        previous = before.get(index - 1)
        return _active(before[index], slots) & _active(previous, slots) if previous else frozenset()

    found = specialised(
        program.schedule,
        lambda index: (before[index].name, stale(index)),
        lambda index, live: _delayed(before[index], slots, stale(index), live),
    )
    return replace(program, variants=found, delayed=tuple(sessions))


def _active(variant: Variant, slots: Mapping[str, int]) -> frozenset[str]:
    return frozenset(operation.id for operation in variant.operations if operation.id in slots)


def _delayed(variant: Variant, slots: Mapping[str, int], stale: frozenset[str], live: frozenset[int]) -> Variant:
    def read(value: Any) -> Any:
        return Previous(slots[value.operation]) if isinstance(value, Ref) and value.operation in stale else value

    operations = {op.id: replace(op, inputs={name: read(value) for name, value in op.inputs.items()}) for op in variant.operations}
    carried = {slot: read(value) for slot, value in variant.carried.items() if slot in live}
    carried |= {slot: Ref(name) for name, slot in slots.items() if slot in live}
    prediction = read(variant.prediction)
    needed = needed_operations(operations, [prediction, *carried.values()])
    kept = tuple(op for name, op in operations.items() if name in needed)
    return Variant("", kept, prediction, carried, ())
