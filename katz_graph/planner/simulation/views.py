"""Follows an operation's inputs back through crops, features and slots, to the step and its part of
the latent.

Hoisting, costs and batching share this code. Values that hold only tensors have no view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.ir.program import Instance, Instances, Program, Variant
from katz_graph.ir.region import CROP, Operation, Part, Previous, Ref
from katz_graph.models.stages import NODE

# inputs that carry a step, by precedence
READ = ("skips", "features", "step")


@dataclass(frozen=True, slots=True)
class View:
    """Holds the step that a value derives from, which determines noise level and timestep, and the
    value's `part` of the latent; None is the whole latent.
    """

    step: Instance
    part: Part | None = None


class Views:
    """Resolves the views of a program. Requires its variants."""

    def __init__(self, program: Program) -> None:
        self._begin = program.region.begin.id
        self._instances = Instances(program)
        self._operations: dict[str, Mapping[str, Operation]] = {
            variant.name: {operation.id: operation for operation in variant.operations}
            for variant in program.variants
        }
        self._known: dict[Instance, View | None] = {}
        self._carrying = {
            variant.name: variant.evaluations for variant in program.variants if _carries(variant)
        }
        for index in sorted(
            index for evaluations in self._carrying.values() for index in evaluations
        ):
            # early evaluations first, to bound the recursion
            for operation in self._instances.variant(index).operations:
                self.of(Ref(operation.id), index)

    def of(self, value: Any, evaluation: int) -> View | None:
        """Returns the step and latent part that an input comes from; None if from no step."""
        found = self._instances.of(value, evaluation)
        if isinstance(value, Previous) and not isinstance(found, Instance):
            return View(Instance(Ref(self._begin, value.slot), None))  # the slot's initial value
        if not isinstance(found, Instance) or found.evaluation is None:
            return None
        if found not in self._known:
            self._known[found] = self._made(found, found.evaluation)
        return self._known[found]

    def read(self, operation: Operation, evaluation: int) -> tuple[View | None, ...]:
        """Returns the views of those inputs of an operation that may derive from a step."""
        return tuple(
            self.of(operation.inputs[name], evaluation)
            for name in READ
            if operation.inputs.get(name) is not None
        )

    def part(self, operation: Operation, variant: Variant) -> Part | None:
        """Returns the part of the latent that an operation works on. Raises InputError if the part
        differs between evaluations of one kind.
        """
        found = {
            view.part if view else None
            for index in self.telling(variant)
            for view in [self.of(Ref(operation.id), index)]
        }
        if len(found) > 1:
            raise InputError(
                f"node {operation.id} ({operation.type}): its slot carries different parts of the "
                "latent in different evaluations; carry the same part in each"
            )
        return found.pop()

    def source(self, value: Any, variant: Variant) -> str | None:
        """Returns the operation that makes a value of this variant; None for a constant."""
        found = self._instances.of(value, variant.evaluations[0])
        return found.ref.operation if isinstance(found, Instance) else None

    def telling(self, variant: Variant) -> tuple[int, ...]:
        """Returns the evaluations to inspect: one, or all if a slot may change their views."""
        return self._carrying.get(variant.name, variant.evaluations[:1])

    def _made(self, instance: Instance, evaluation: int) -> View | None:
        if instance.ref.operation == self._begin:
            return View(instance)
        operation = self._operations[self._instances.variant(evaluation).name][
            instance.ref.operation
        ]
        # packs choose the names of their inputs
        names = (*READ, *operation.inputs) if operation.stage == NODE else READ
        views = (
            self.of(operation.inputs[name], evaluation)
            for name in names
            if operation.inputs.get(name) is not None
        )
        view = next((view for view in views if view is not None), None)
        if operation.type == CROP:
            return View(
                view.step if view else instance, _cropped(operation, view.part if view else None)
            )
        if operation.stage == NODE:  # a pack's node may output another step
            return View(instance, view.part if view else None)
        return view


def _carries(variant: Variant) -> bool:
    """Returns whether an operation reads a step from a slot."""
    return any(
        isinstance(operation.inputs.get(name), Previous)
        for operation in variant.operations
        for name in READ
    )


def _cropped(operation: Operation, outer: Part | None) -> Part:
    """Returns the part that a StepCrop selects from its input's part."""
    sizes = [operation.inputs[name] for name in ("top", "left", "height", "width")]
    if any(isinstance(size, (Ref, Previous)) for size in sizes):
        raise InputError(
            f"node {operation.id} ({operation.type}): its part is not known before the run; link "
            "sizes from outside the step region"
        )
    top, left, height, width = sizes
    return (
        Part(top + outer.top, left + outer.left, height, width)
        if outer
        else Part(top, left, height, width)
    )
