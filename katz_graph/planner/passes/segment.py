"""Pass *segment*: finds the longest runs of calls on one device without receiving, sending or
patching in between. Sets the calls' `shares`.

Each run becomes one CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from katz_graph.core.recipe import Component, Lora, ModelRecipe
from katz_graph.ir.program import Call, Program, Segment, Variant
from katz_graph.ir.region import Operation, Previous, Ref
from katz_graph.planner.region import stage_of
from katz_graph.planner.sharing import share_key
from katz_graph.planner.simulation.views import Views


def segment(program: Program) -> Program:
    """Sets `segments`, per variant in the order of their first calls."""
    crossings, views = _Crossings(program), Views(program)
    every = [
        (
            variant,
            tuple(replace(call, shares=share_key(program, variant, call, views)) for call in calls),
        )
        for variant, calls in zip(program.variants, program.calls, strict=True)
    ]
    return replace(
        program,
        calls=tuple(calls for _, calls in every),
        segments=tuple(tuple(_segments(variant, calls, crossings)) for variant, calls in every),
    )


def _segments(
    variant: Variant, calls: tuple[Call, ...], crossings: _Crossings
) -> Iterator[Segment]:
    operations = {operation.id: operation for operation in variant.operations}
    runs: list[list[Call]] = []
    open_runs: dict[str, list[Call]] = {}
    weights: dict[tuple[str, Component], tuple[Lora, ...]] = {}  # by device and network
    for call in calls:
        members = [operations[name] for name in call.operations]
        model = members[0].inputs.get("model")
        if isinstance(model, ModelRecipe):
            if weights.get((call.device, model.network), model.loras) != model.loras:
                open_runs.pop(call.device, None)
            weights[call.device, model.network] = model.loras
        if call.device not in open_runs or any(crossings.arrives(member) for member in members):
            open_runs[call.device] = []
            runs.append(open_runs[call.device])
        open_runs[call.device].append(call)
        if any(crossings.leaves(variant, member) for member in members):
            del open_runs[call.device]
    for number, run in enumerate(runs):
        name, concurrent = f"{variant.name}.{number}", tuple(_concurrent(operations, run))
        yield Segment(name, run[0].device, tuple(run), *_ends(variant, run), concurrent)


def _concurrent(operations: Mapping[str, Operation], run: list[Call]) -> Iterator[int]:
    """Yields the indices of calls that a GPU may run concurrently with the next call. The next call
    reads none of their outputs, and both stages are costed and recordable. No call is in two pairs.
    """
    taken = -1
    for number, (call, behind) in enumerate(pairwise(run)):
        stages = [stage_of(operations[one.operations[0]]) for one in (call, behind)]
        read = {
            ref.operation for name in behind.operations for _, ref in operations[name].references()
        }
        apart = read.isdisjoint(call.operations)
        if number > taken and apart and all(one.costed and one.recorded for one in stages):
            taken = number + 1
            yield number


def _ends(variant: Variant, run: list[Call]) -> tuple[tuple[Ref | Previous, ...], tuple[Ref, ...]]:
    """Returns a run's inputs from outside, and its outputs that are read outside."""
    inside = {name for call in run for name in call.operations}
    taken = [
        value
        for operation in variant.operations
        if operation.id in inside
        for value in operation.inputs.values()
    ]
    wanted = [
        value
        for operation in variant.operations
        if operation.id not in inside
        for value in operation.inputs.values()
    ]
    wanted += [variant.prediction, *variant.carried.values()]
    made = {
        value for value in (*taken, *wanted) if isinstance(value, Ref) and value.operation in inside
    }
    reads = dict.fromkeys(
        value for value in taken if isinstance(value, (Ref, Previous)) and value not in made
    )
    return tuple(reads), tuple(
        dict.fromkeys(value for value in wanted if isinstance(value, Ref) and value in made)
    )


class _Crossings:
    """Finds operations that read from another device, and operations that another device reads, in
    the same evaluation or a later one.
    """

    def __init__(self, program: Program) -> None:
        self._placement, self._sampler_device = program.placement, program.sampler_device
        self._begin = program.region.begin.id
        self._carried: dict[int, set[str]] = {}  # slot -> devices that may have made its value
        self._readers: dict[int, set[str]] = {}  # slot -> devices that may read it
        # repeats, because slots may forward the values of other slots
        for _ in range(1 + max((len(variant.carried) for variant in program.variants), default=0)):
            for variant in program.variants:
                self._follow(variant)

    def _follow(self, variant: Variant) -> None:
        for operation in variant.operations:
            for slot in operation.slots():
                self._readers.setdefault(slot, set()).add(self._placement[operation.id])
        for slot, value in variant.carried.items():
            made = self._carried.setdefault(slot, set())
            if isinstance(value, Ref):
                made.add(self._device(value))
            elif isinstance(value, Previous):
                made |= self._carried.get(value.slot, set())
                self._readers.setdefault(value.slot, set()).update(self._readers.get(slot, set()))

    def _device(self, value: Ref) -> str:
        return (
            self._sampler_device
            if value.operation == self._begin
            else self._placement.get(value.operation, "")
        )

    def arrives(self, operation: Operation) -> bool:
        here = self._placement[operation.id]
        return any(self._comes_from_elsewhere(value, here) for value in operation.inputs.values())

    def _comes_from_elsewhere(self, value: Any, here: str) -> bool:
        if isinstance(value, Previous):
            return bool(self._carried.get(value.slot, set()) - {here})
        return isinstance(value, Ref) and self._device(value) not in (here, "")

    def leaves(self, variant: Variant, operation: Operation) -> bool:
        here = self._placement[operation.id]
        readers = {
            self._placement[other.id]
            for other in variant.operations
            for _, ref in other.references()
            if ref.operation == operation.id
        }
        if isinstance(variant.prediction, Ref) and variant.prediction.operation == operation.id:
            readers.add(self._sampler_device)
        for slot, value in variant.carried.items():
            if isinstance(value, Ref) and value.operation == operation.id:
                readers |= self._readers.get(slot, set())
        return bool(readers - {here})
