"""A ControlNet one evaluation behind: its residuals become a loop-carried value (Katz, section 5: pipelined asynchronous parallelization).

The first evaluation in which it acts waits for it; what no evaluation reads is not computed. Staleness counts in evaluations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.planner.program import Program, Variant
from katz_graph.planner.region import SLOTS, Previous, Ref
from katz_graph.planner.variants import needed_operations, slots_read


def delay(program: Program, sessions: Sequence[str]) -> Program:
    """The program in which readers of the ControlNet operations `sessions` read what the evaluation before computed, where one did."""
    slots = {name: SLOTS + number for number, name in enumerate(sessions, start=1)}
    before = {index: variant for variant in program.variants for index in variant.evaluations}
    live: frozenset[int] = frozenset()
    kinds: dict[tuple[str, frozenset[str], frozenset[int]], list[int]] = {}
    built: dict[tuple[str, frozenset[str], frozenset[int]], Variant] = {}
    for point in reversed(program.schedule):
        variant, previous = before[point.index], before.get(point.index - 1)
        stale = _active(variant, slots) & _active(previous, slots) if previous else frozenset()
        key = (variant.name, stale, live)
        if key not in built:
            built[key] = _delayed(variant, slots, stale, live)
        kinds.setdefault(key, []).append(point.index)
        live = slots_read(built[key])
    found = sorted((replace(built[key], evaluations=tuple(sorted(indices))) for key, indices in kinds.items()), key=lambda v: v.evaluations)
    return replace(program, variants=tuple(replace(one, name=f"v{n}") for n, one in enumerate(found)), delayed=tuple(sessions))


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
