"""Pass *search*: choices that cost time and never change the picture. On one device: equal stages batched into one call, or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import networkx

from katz_graph.planner.decompose import COSTED
from katz_graph.planner.hoist import PER_TEXT, TAKES
from katz_graph.planner.program import Call, Device, Program, Variant
from katz_graph.planner.region import Operation, Previous, Ref

BATCHED, SPLIT = "equal stages batched", "one call per branch"


def search(program: Program, batching: bool | None = None) -> Program:
    """Fills `calls`, `before_calls` and `alternatives` with the fastest choice; `batching` decides it beforehand."""
    (device,) = program.devices
    candidates = {SPLIT: _candidate(program, device, merge=False)}
    merged = _candidate(program, device, merge=True)
    if merged.calls != candidates[SPLIT].calls:
        candidates[BATCHED] = merged
    alternatives = {name: request_seconds(candidate) for name, candidate in candidates.items()}
    wanted = {None: None, True: BATCHED, False: SPLIT}[batching]
    chosen = wanted if wanted in candidates else min(alternatives, key=lambda name: alternatives[name])
    return replace(candidates[chosen], alternatives=alternatives)


def request_seconds(program: Program) -> float:
    """Predicted time of the whole request: what is computed before the loop, and every evaluation."""
    loop = sum(
        len(variant.evaluations) * sum(call.seconds for call in calls)
        for variant, calls in zip(program.variants, program.calls, strict=True)
    )
    return loop + sum(call.seconds for call in program.before_calls)


def _candidate(program: Program, device: Device, merge: bool) -> Program:
    calls = tuple(_calls(program, variant, device, merge) for variant in program.variants)
    return replace(program, calls=calls, before_calls=_before_calls(program, calls, device))


def _calls(program: Program, variant: Variant, device: Device, merge: bool) -> tuple[Call, ...]:
    groups = _equal_groups(program, variant) if merge else [[operation.id] for operation in variant.operations]
    graph = _merged_graph(variant.operations, groups)
    stages = {operation.id: operation.stage for operation in variant.operations}
    position = {operation.id: number for number, operation in enumerate(variant.operations)}
    order = networkx.lexicographical_topological_sort(graph, key=lambda group: position[group[0]])
    return tuple(_call(program, group, stages[group[0]], device) for group in order)


def _call(program: Program, group: Sequence[str], stage: str, device: Device) -> Call:
    work = program.work[group[0]].batched(len(group))
    free = work.flops == 0 and work.activation_bytes == 0
    return Call(tuple(group), stage, device.name, 0.0 if free else device.seconds(work))


def _equal_groups(program: Program, variant: Variant) -> list[list[str]]:
    """Equal stages of different branches, as far as merging them leaves the graph free of cycles."""
    groups: dict[Any, list[str]] = {}
    for operation in variant.operations:
        groups.setdefault(_merge_key(program, operation), []).append(operation.id)
    found = [[name] for group in groups.values() for name in group]
    for group in (group for group in groups.values() if len(group) > 1):
        trial = [*(other for other in found if other[0] not in group), group]
        if networkx.is_directed_acyclic_graph(_merged_graph(variant.operations, trial)):
            found = trial
    return found


def _merge_key(program: Program, operation: Operation) -> Any:
    """Operations with equal keys may share one call: same stage and constants, same kinds of inputs, equal sizes.

    Their tensors then have one shape: of the part of the latent, of the text, and of the block range, which is a constant.
    """
    if operation.stage not in COSTED:
        return operation.id
    constants = tuple((name, value) for name, value in sorted(operation.inputs.items()) if not isinstance(value, (Ref, Previous)))
    variable = tuple(sorted((name, type(value).__name__) for name, value in operation.inputs.items() if isinstance(value, (Ref, Previous))))
    return operation.stage, constants, variable, program.tokens[operation.id], program.cells[operation.id]


def _merged_graph(operations: Iterable[Operation], groups: Sequence[Sequence[str]]) -> networkx.DiGraph:
    owner = {name: tuple(group) for group in groups for name in group}
    graph = networkx.DiGraph()
    graph.add_nodes_from(tuple(group) for group in groups)
    for operation in operations:
        for _, ref in operation.references():
            if ref.operation in owner:
                graph.add_edge(owner[ref.operation], owner[operation.id])
    return graph


def _before_calls(program: Program, calls: Sequence[Sequence[Call]], device: Device) -> tuple[Call, ...]:
    """Hoisted work in order; what a batched call reads is computed in the same batch."""
    operations = {op.id: op for variant in program.variants for op in variant.operations}
    batches: dict[str, tuple[str, ...]] = {}
    for call in (call for variant in calls for call in variant if len(call.operations) > 1):
        for name in TAKES.get(call.stage, ()):
            group = tuple(operations[member].inputs[name].operation for member in call.operations)
            if len(set(group)) == len(group) and not any(member in batches for member in group):
                batches |= dict.fromkeys(group, group)
    ordered = dict.fromkeys(batches.get(operation.id, (operation.id,)) for operation in program.before)
    stages = {operation.id: operation.stage for operation in program.before}
    ready = sorted(ordered, key=lambda group: stages[group[0]] in PER_TEXT.values())  # texts first
    return tuple(_call(program, group, stages[group[0]], device) for group in ready)
