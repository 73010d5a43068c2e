"""Pass *variants*: resolves every switch, so that each kind of evaluation becomes a plain DAG.
Conditions are known before the run.

ControlNet windows, StepPattern and ranges of prompts are all conditions. Drops operations and slots
without a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.ir.program import EvaluationPoint, Program, Variant
from katz_graph.ir.region import SLOTS, SWITCH, Operation, Previous, Ref, Region

CONDITIONS = ("step_pattern", "step_window")
Decide = Callable[[Operation, EvaluationPoint], bool]


def variants(program: Program, decide: Decide) -> Program:
    """Sets `variants`; `decide(operation, evaluation)` answers a condition. Raises InputError if a
    slot is read before it is written.
    """
    region, schedule = program.region, program.schedule
    resolved: list[tuple[tuple[bool, ...], Mapping[str, Any]]] = []
    for point in schedule:
        decisions = {op.id: decide(op, point) for op in region.operations if op.stage in CONDITIONS}
        resolved.append((tuple(decisions.values()), decisions))
    found = specialised(
        schedule,
        lambda index: resolved[index][0],
        lambda index, live: _variant(region, resolved[index][1], live),
    )
    _check_slots(region, found)
    return replace(program, variants=found)


def specialised(
    schedule: Sequence[EvaluationPoint],
    kind: Callable[[int], Hashable],
    build: Callable[[int, frozenset[int]], Variant],
) -> tuple[Variant, ...]:
    """Builds one variant for all evaluations of equal kind and live slots, from the last evaluation
    to the first.

    `build(index, live)` makes the variant of an evaluation; `live` are the slots that the next
    evaluation reads.
    """
    live: frozenset[int] = frozenset()
    built: dict[Hashable, Variant] = {}
    of_kind: dict[Hashable, list[int]] = {}
    for index in reversed(range(len(schedule))):
        key = kind(index), live
        if key not in built:
            built[key] = build(index, live)
        of_kind.setdefault(key, []).append(index)
        live = slots_read(built[key])
    found = [
        replace(built[key], evaluations=tuple(sorted(indices))) for key, indices in of_kind.items()
    ]
    found.sort(key=lambda variant: variant.evaluations)
    return tuple(replace(variant, name=f"v{number}") for number, variant in enumerate(found))


def _variant(region: Region, decisions: Mapping[str, bool], live: frozenset[int]) -> Variant:
    aliases: dict[Ref, Any] = {}

    def follow(value: Any) -> Any:
        while isinstance(value, Ref) and value in aliases:
            value = aliases[value]
        return value

    resolved: dict[str, Operation] = {}
    for operation in region.operations:
        inputs = {name: follow(value) for name, value in operation.inputs.items()}
        if operation.stage in CONDITIONS:
            aliases[Ref(operation.id)] = decisions[operation.id]
        elif operation.stage == SWITCH:
            if not isinstance(inputs.get("condition"), bool):
                raise InputError(
                    f"node {operation.id} ({operation.type}), condition: not known before the run; "
                    "link a StepPattern, a StepWindow or a BOOLEAN from outside the step region"
                )
            aliases[Ref(operation.id)] = (
                inputs.get("on_true") if inputs.get("condition") else inputs.get("on_false")
            )
        else:
            resolved[operation.id] = replace(operation, inputs=inputs)
    prediction = follow(region.end.inputs.get("prediction"))
    if not isinstance(prediction, Ref):
        raise InputError(
            f"node {region.end.id} ({region.end.type}): input 'prediction' is empty in some step; "
            "link a prediction for it"
        )
    following = {slot: region.end.inputs.get(f"next_{slot}") for slot in range(1, SLOTS + 1)}
    carried = {slot: follow(following[slot]) for slot in sorted(live)}
    needed = needed_operations(resolved, [prediction, *carried.values()])
    operations = tuple(op for name, op in resolved.items() if name in needed)
    for operation in operations:
        _check_inputs(operation)
    return Variant("", operations, prediction, carried, ())


def _check_inputs(operation: Operation) -> None:
    """Raises InputError if a required input is None, such as a Switch's missing input."""
    for name in operation.required:
        if operation.inputs.get(name) is None:
            raise InputError(
                f"node {operation.id} ({operation.type}), {name}: is empty in some evaluation; "
                "link both sides of the Switch"
            )


def needed_operations(operations: Mapping[str, Operation], roots: Sequence[Any]) -> set[str]:
    frontier = [root.operation for root in roots if isinstance(root, Ref)]
    needed: set[str] = set()
    while frontier:
        name = frontier.pop()
        if name not in needed and name in operations:
            needed.add(name)
            frontier.extend(ref.operation for _, ref in operations[name].references())
    return needed


def slots_read(variant: Variant) -> frozenset[int]:
    read = {slot for operation in variant.operations for slot in operation.slots()}
    return frozenset(
        read | {value.slot for value in variant.carried.values() if isinstance(value, Previous)}
    )


def _check_slots(region: Region, found: Sequence[Variant]) -> None:
    """Raises InputError for a slot without initial value that is read before it is written."""
    written = {
        slot
        for slot in range(1, SLOTS + 1)
        if region.begin.inputs.get(f"initial_{slot}") is not None
    }
    order = sorted((index, variant) for variant in found for index in variant.evaluations)
    for index, variant in order:
        for slot in sorted(slots_read(variant) - written):
            raise InputError(
                f"node {region.begin.id} ({region.begin.type}): evaluation {index} reads "
                f"previous_{slot} "
                f"before any evaluation wrote next_{slot}; "
                f"link initial_{slot}, or let evaluation {index} compute the value (StepPattern "
                f"with offset {index})"
            )
        written |= set(variant.carried)
