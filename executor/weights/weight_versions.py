"""Gives the operations of a program as they are while some of its LoRAs are not there yet. Must not
know what has arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from katz_graph.adapters.recipes import without
from katz_graph.ir.program import Instruction, LateLoras, Program
from katz_graph.ir.region import Operation
from katz_graph.planner.queries import weight_sets
from katz_graph.recipe import ModelRecipe

NOTHING_LATE = LateLoras((), (), ())


@dataclass(frozen=True, slots=True)
class Version:
    """Holds operations by id, before the loop and in each variant, and the models that are patched
    by the name of their weight set in the program.
    """

    before: Mapping[str, Operation]
    variants: Sequence[Mapping[str, Operation]]
    weight_sets: Mapping[str, ModelRecipe]

    @property
    def models(self) -> list[ModelRecipe]:
        """Returns the networks of the loop, in the order of their operations."""
        found = (op.inputs.get("model") for variant in self.variants for op in variant.values())
        return [model for model in found if isinstance(model, ModelRecipe)]


class WeightVersions:
    """Makes each version once. Operations of one version stay the same objects."""

    def __init__(self, program: Program, device: str) -> None:
        self.late = program.late or NOTHING_LATE
        self._prologue = [one for one in program.instructions[device] if one.evaluation is None]
        self._members = {call.operations[0]: call.operations for call in program.before_calls}
        whole = Version(
            {op.id: op for op in program.before},
            [{op.id: op for op in variant.operations} for variant in program.variants],
            weight_sets(program),
        )
        self._versions = {self.late.everything: whole}

    def of(self, present: int) -> Version:
        """Returns the program's operations with those late LoRAs that are `present`."""
        if present not in self._versions:
            whole, bare = (
                self._versions[self.late.everything],
                partial(without, self.late.absent(present)),
            )
            self._versions[present] = Version(
                _changed(whole.before, bare),
                [_changed(variant, bare) for variant in whole.variants],
                {name: bare(model) for name, model in whole.weight_sets.items()},
            )
        return self._versions[present]

    def again(self, before: int, after: int, evaluation: int) -> list[Instruction]:
        """Returns what is to be done again, before an evaluation, when other LoRAs are there: the
        patches, and what was computed with the others.
        """
        affected = self.late.affected(before ^ after)
        return [
            replace(one, evaluation=evaluation)
            for one in self._prologue
            if one.kind == "patch"
            or not affected.isdisjoint(
                self._members[one.target] if one.kind == "prepare" else (one.target,)
            )
        ]


def _changed(operations: Mapping[str, Operation], bare: partial[object]) -> Mapping[str, Operation]:
    return {
        name: replace(op, inputs={key: bare(value) for key, value in op.inputs.items()})
        for name, op in operations.items()
    }
