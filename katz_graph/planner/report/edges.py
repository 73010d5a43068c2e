"""Lists the edges of a program: source, target, size and age of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from katz_graph.ir.program import Instance, Instances, Program, Variant
from katz_graph.ir.region import SLOTS, Operation, Previous
from katz_graph.planner.passes.cost import ValueSizes
from katz_graph.planner.report.document import DescribedEdge


class Edges:
    """Lists a program's edges; their bytes are 0 before pass *cost*."""

    def __init__(self, program: Program) -> None:
        self._end = program.region.end.id
        self._instances = Instances(program)
        self._sizes = ValueSizes(program) if program.work else None
        self._begin = program.region.begin.id

    def before(self, operation: Operation) -> Iterator[DescribedEdge]:
        """Yields the edges into an operation that precedes the loop."""
        for name, ref in operation.references():
            yield self._edge(Instance(ref, None), operation.id, name, 0, False)

    def of(self, variant: Variant) -> tuple[DescribedEdge, ...]:
        """Returns the edges into a variant's operations and the region's end, one per age that a
        value has in the variant's evaluations.
        """
        ends = {"prediction": variant.prediction} | {
            f"next_{slot}": value for slot, value in variant.carried.items() if slot <= SLOTS
        }
        found: dict[DescribedEdge, None] = {}
        for evaluation in variant.evaluations:
            for operation in variant.operations:
                found.update(self._into(operation.id, operation.inputs, evaluation))
            found.update(self._into(self._end, ends, evaluation))
        return tuple(found)

    def _into(
        self, target: str, inputs: Mapping[str, Any], evaluation: int
    ) -> Iterator[tuple[DescribedEdge, None]]:
        for name, value in inputs.items():
            instance = self._instances.of(value, evaluation)
            if isinstance(instance, Instance):
                made = instance.evaluation
                delay = 0 if made is None else evaluation - made
                stale = isinstance(value, Previous) and value.slot > SLOTS
                yield self._edge(instance, target, name, delay, stale), None

    def _edge(
        self, instance: Instance, target: str, name: str, delay: int, stale: bool
    ) -> DescribedEdge:
        ref = instance.ref
        size = 0.0 if self._sizes is None else self._sizes.of(ref)
        return DescribedEdge(ref.operation, ref.output, target, name, size, delay, stale)
