"""Pass *stale ControlNets*: makes variants that read a ControlNet's residuals of the previous
evaluation (Katz, section 5: pipelined asynchronous parallelization).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import SLOTS, Previous, Ref
from katz_graph.planner.passes.variants import needed_operations, specialised
from katz_graph.planner.region import stage_of


def make_stale(program: Program, controlnet_ops: Sequence[str]) -> Program:
    """Makes the ControlNet operations `controlnet_ops` stale: their readers use the output of the
    previous evaluation, if it computed one. Residuals become a loop-carried value (Katz, section 5:
    pipelined asynchronous parallelization).

    In the first of consecutive evaluations with a ControlNet, readers wait for the ControlNet.
    Outputs that no evaluation reads are not computed.
    """
    slots = {name: SLOTS + number for number, name in enumerate(controlnet_ops, start=1)}
    lagging = {
        op.id: stage_of(op).stale_output or 0
        for variant in program.variants
        for op in variant.operations
        if op.id in slots
    }
    before = {index: variant for variant in program.variants for index in variant.evaluations}

    def stale(index: int) -> frozenset[str]:
        previous = before.get(index - 1)
        return _active(before[index], slots) & _active(previous, slots) if previous else frozenset()

    found = specialised(
        program.schedule,
        lambda index: (before[index].name, stale(index)),
        lambda index, live: _stale_variant(before[index], slots, lagging, stale(index), live),
    )
    return replace(program, variants=found, stale=tuple(controlnet_ops))


def _active(variant: Variant, slots: Mapping[str, int]) -> frozenset[str]:
    return frozenset(operation.id for operation in variant.operations if operation.id in slots)


def _stale_variant(
    variant: Variant,
    slots: Mapping[str, int],
    lagging: Mapping[str, int],
    stale: frozenset[str],
    live: frozenset[int],
) -> Variant:
    def read(value: Any) -> Any:
        lags = (
            isinstance(value, Ref)
            and value.operation in stale
            and value.output == lagging[value.operation]
        )
        return Previous(slots[value.operation]) if lags else value

    operations = {
        op.id: replace(op, inputs={name: read(value) for name, value in op.inputs.items()})
        for op in variant.operations
    }
    carried = {slot: read(value) for slot, value in variant.carried.items() if slot in live}
    carried |= {slot: Ref(name, lagging[name]) for name, slot in slots.items() if slot in live}
    prediction = read(variant.prediction)
    needed = needed_operations(operations, [prediction, *carried.values()])
    remaining = tuple(op for name, op in operations.items() if name in needed)
    return Variant("", remaining, prediction, carried, ())
