"""Holds the values of one evaluation (or of what precedes the loop), by the operations that made
them, batched calls included.

Values of earlier evaluations that this one reads are kept beside them, by instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from katz_graph.executor.worker.batching import merge, split
from katz_graph.ir.program import Instance
from katz_graph.ir.region import Previous, Ref


class Values:
    """Holds results of calls, and what arrived from other devices. A batched result stays whole
    until somebody reads one part of it.

    `origin` says which instance a loop-carried value is (or its value, when it never was one);
    `kept` has those instances.
    """

    def __init__(
        self,
        outer: Values | None = None,
        origin: Callable[[Previous], Instance | Any] | None = None,
        kept: Mapping[Instance, Any] | None = None,
    ) -> None:
        self._outer = outer
        self._origin = origin
        self._kept = dict(kept or {})
        self._arrived: dict[Ref, Any] = {}
        self._results: dict[tuple[str, ...], tuple[Any, ...]] = {}
        self._owner: dict[str, tuple[str, ...]] = {}
        self._merged: dict[tuple[Ref, ...], Any] = {}

    def put(self, operations: tuple[str, ...], outputs: tuple[Any, ...]) -> None:
        """Takes the results of a call, in place of those that it gave before."""
        self._merged.clear()
        self._results[operations] = outputs
        self._owner |= dict.fromkeys(operations, operations)

    def arrive(self, instance: Instance, value: Any, evaluation: int | None) -> None:
        """Takes what another device made, in this evaluation or in an earlier one."""
        self._merged.clear()
        if instance.evaluation == evaluation:
            self._arrived[instance.ref] = value
        else:
            self._kept[instance] = value

    def keep(self, instances: Sequence[Instance], evaluation: int) -> dict[Instance, Any]:
        """Returns these instances, for the evaluation after this one."""
        return {
            one: self.resolve(one.ref) if one.evaluation == evaluation else self._kept[one]
            for one in instances
        }

    def resolve(self, value: Any) -> Any:
        """Returns the value of a reference or slot; anything else is itself."""
        if isinstance(value, Previous):
            assert self._origin is not None  # only evaluations have slots
            origin = self._origin(value)
            return self._kept[origin] if isinstance(origin, Instance) else origin
        if not isinstance(value, Ref):
            return value
        if value in self._arrived:
            return self._arrived[value]
        if value.operation not in self._owner:
            if self._outer is None:
                raise KeyError(f"operation {value.operation} has not run")
            return self._outer.resolve(value)
        operations = self._owner[value.operation]
        if len(operations) > 1:
            for name, outputs in zip(
                operations, split(self._results[operations], len(operations)), strict=True
            ):
                self.put((name,), outputs)
        return self._results[(value.operation,)][value.output]

    def gather(self, values: Sequence[Any]) -> Any:
        """Concatenates what several operations of one call take; a result that was made by the same
        batch is taken whole.

        RunError for what cannot be one, see `merge`.
        """
        if len(values) == 1:
            return self.resolve(values[0])
        whole = self._whole(values)
        if whole is not None:
            return whole
        merged = merge([self.resolve(value) for value in values])
        if self._outer is not None and all(
            isinstance(value, Ref) and self._is_outer(value) for value in values
        ):
            self._outer._keep(values, merged)
        return merged

    def _is_outer(self, value: Ref) -> bool:
        return value.operation not in self._owner and value not in self._arrived

    def _keep(self, values: Sequence[Ref], merged: Any) -> None:
        """Remembers a concatenation of what precedes the loop, so that it is made once."""
        self._merged[tuple(values)] = merged

    def _whole(self, values: Sequence[Any]) -> Any | None:
        if not all(isinstance(value, Ref) and value.output == values[0].output for value in values):
            return None
        outputs = self._results.get(tuple(value.operation for value in values))
        if outputs is not None:
            return outputs[values[0].output]
        if tuple(values) in self._merged:
            return self._merged[tuple(values)]
        return None if self._outer is None else self._outer._whole(values)
