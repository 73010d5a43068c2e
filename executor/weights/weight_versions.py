"""Derives a program's operations for each set of available deferred LoRAs. Must not know which are
available.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from katz_graph.adapters.recipes import without
from katz_graph.core.recipe import Component, Lora, ModelRecipe
from katz_graph.ir.program import DeferredLoras, Instruction, Program
from katz_graph.ir.region import Operation
from katz_graph.planner.queries import weight_sets

NOTHING_DEFERRED = DeferredLoras((), (), ())

Weights = tuple[Component, tuple[Lora, ...]]
"""A network, and the LoRAs merged into it."""


@dataclass(frozen=True, slots=True)
class Version:
    """Holds the program for one set of available deferred LoRAs."""

    before: Mapping[str, Operation]
    """Operations before the loop, by id."""
    variants: Sequence[Mapping[str, Operation]]
    """Operations of each variant, by id."""
    weight_sets: Mapping[str, ModelRecipe]
    """Models to patch, by the name of their weight set in the program."""
    networks: Mapping[str, Sequence[ModelRecipe]]
    """Models that a segment, or a call before the loop, needs with their weight sets resident.
    Keys: the name of the segment, or the first operation of the call.
    """
    names: Mapping[Weights, str]
    """Names of the complete weight sets, by their resident weights."""

    @property
    def models(self) -> list[ModelRecipe]:
        """Returns the networks of the loop, in the order of their operations."""
        return _networks(op for variant in self.variants for op in variant.values())


class WeightVersions:
    """Creates each version once. Operations of one version stay the same objects."""

    def __init__(self, program: Program, device: str) -> None:
        self.deferred = program.deferred_loras or NOTHING_DEFERRED
        self._prologue = [one for one in program.instructions[device] if one.evaluation is None]
        self._members = {call.operations[0]: call.operations for call in program.before_calls}
        self._segments = program.segments
        self._before = {op.id: op for op in program.before}
        self._variants = [{op.id: op for op in variant.operations} for variant in program.variants]
        self._weight_sets = weight_sets(program)
        self._versions: dict[int, Version] = {}

    def of(self, present: int) -> Version:
        """Returns the program's operations with the deferred LoRAs of the bit set `present`."""
        if present not in self._versions:
            self._versions[present] = self._made(partial(without, self.deferred.absent(present)))
        return self._versions[present]

    def _made(self, bare: Callable[[Any], Any]) -> Version:
        before = _changed(self._before, bare)
        variants = [_changed(variant, bare) for variant in self._variants]
        networks = {
            first: _networks(before[name] for name in members)
            for first, members in self._members.items()
        }
        for operations, segments in zip(variants, self._segments, strict=True):
            for segment in segments:
                names = (name for call in segment.calls for name in call.operations)
                networks[segment.name] = _networks(operations[name] for name in names)
        sets = {name: bare(model) for name, model in self._weight_sets.items()}
        whole = {
            model.weights: name for name, model in sets.items() if model == self._weight_sets[name]
        }
        return Version(before, variants, sets, networks, whole)

    def again(self, before: int, after: int, evaluation: int) -> list[Instruction]:
        """Returns the instructions to repeat before an evaluation, if the set of available LoRAs
        changed: the calls before the loop that use a changed LoRA. Omits patches, because each call
        makes its weight set resident.
        """
        affected = self.deferred.affected(before ^ after)
        return [
            replace(one, evaluation=evaluation)
            for one in self._prologue
            if not affected.isdisjoint(
                self._members[one.target] if one.kind == "prepare" else (one.target,)
            )
        ]


def _networks(operations: Iterable[Operation]) -> list[ModelRecipe]:
    """Returns the models that these operations compute with, in the order of the operations."""
    models = (op.inputs.get("model") for op in operations)
    return list({one.weights: one for one in models if isinstance(one, ModelRecipe)}.values())


def _changed(
    operations: Mapping[str, Operation], bare: Callable[[Any], Any]
) -> Mapping[str, Operation]:
    return {
        name: replace(op, inputs={key: bare(value) for key, value in op.inputs.items()})
        for name, op in operations.items()
    }
