"""Holds the values of one evaluation, or of the calls before the loop, by the operations that
produced them. One call may produce the values of a batch of operations.

Values from earlier evaluations are stored separately, by operation output and evaluation
(`Instance`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from katz_graph.executor.calls.batching import merge, split
from katz_graph.executor.calls.rows import taken
from katz_graph.ir.program import Instance
from katz_graph.ir.region import Previous, Ref


class Values:
    """Holds the results of calls and values received from other devices. A batched result is split
    only when one of its parts is read, and so is a result with rows of other requests.

    `origin` returns the instance behind a loop-carried value, or the value itself if no operation
    produced it; `carried` holds the values of those instances.
    """

    def __init__(
        self,
        outer: Values | None = None,
        origin: Callable[[Previous], Instance | Any] | None = None,
        carried: Mapping[Instance, Any] | None = None,
    ) -> None:
        self._outer = outer
        self._origin = origin
        self._carried = dict(carried or {})
        self._arrived: dict[Ref, Any] = {}
        self._results: dict[tuple[str, ...], tuple[Any, ...]] = {}
        self._owner: dict[str, tuple[str, ...]] = {}
        self._merged: dict[tuple[Ref, ...], Any] = {}

    def put(self, operations: tuple[str, ...], outputs: tuple[Any, ...]) -> None:
        """Stores the results of a call, replacing earlier results."""
        self._merged.clear()
        self._results[operations] = outputs
        self._owner |= dict.fromkeys(operations, operations)

    def arrive(self, instance: Instance, value: Any, evaluation: int | None) -> None:
        """Stores a value from another device, computed in this evaluation or an earlier one."""
        self._merged.clear()
        if instance.evaluation == evaluation:
            self._arrived[instance.ref] = value
        else:
            self._carried[instance] = value

    def keep(self, instances: Sequence[Instance], evaluation: int) -> dict[Instance, Any]:
        """Returns the values of these instances, for the next evaluation."""
        return {
            one: self.resolve(one.ref) if one.evaluation == evaluation else self._carried[one]
            for one in instances
        }

    def resolve(self, value: Any) -> Any:
        """Returns the value of a reference or slot, or any other value unchanged."""
        if isinstance(value, Previous):
            assert self._origin is not None  # only evaluations have slots
            origin = self._origin(value)
            return self._carried[origin] if isinstance(origin, Instance) else origin
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
            whole = tuple(map(taken, self._results[operations]))
            for name, outputs in zip(operations, split(whole, [1] * len(operations)), strict=True):
                self.put((name,), outputs)
        return taken(self._results[(value.operation,)][value.output])

    def gather(self, values: Sequence[Any]) -> Any:
        """Concatenates the values that the operations of one call read. Reuses a result of the same
        batch without splitting it, and returns it as `Rows` if other requests shared its call.

        Raises RunError for values that cannot be merged, see `merge`.
        """
        whole = self._whole(values)
        if whole is not None:
            return whole
        if len(values) == 1:
            return self.resolve(values[0])
        merged = merge([self.resolve(value) for value in values])
        if self._outer is not None and all(
            isinstance(value, Ref) and self._is_outer(value) for value in values
        ):
            self._outer._keep(values, merged)
        return merged

    def _is_outer(self, value: Ref) -> bool:
        return value.operation not in self._owner and value not in self._arrived

    def _keep(self, values: Sequence[Ref], merged: Any) -> None:
        """Caches a concatenation of values from before the loop, which is then computed once."""
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
