"""Holds the values of one evaluation, or of the calls before the loop, by the operations that
produced them. One call may produce the values of a batch of operations.

Values from earlier evaluations are stored separately, by operation output and evaluation
(`Instance`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katz_graph.executor.calls.batching import merge, split
from katz_graph.executor.calls.rows import taken
from katz_graph.ir.program import Instance
from katz_graph.ir.region import Previous, Ref


@dataclass(frozen=True, slots=True)
class Reading:
    """Lists the values that the operations of a call read as one of its inputs."""

    values: tuple[Any, ...]
    produced: bool  # all by operations of this request
    # the operations, if all values are the same output of each, and the number of that output
    operations: tuple[str, ...] | None
    output: int = 0

    @classmethod
    def of(cls, values: Sequence[Any]) -> Reading:
        refs = [value for value in values if isinstance(value, Ref)]
        produced = len(refs) == len(values)
        if not produced or len({ref.output for ref in refs}) > 1:
            return cls(tuple(values), produced, None)
        return cls(tuple(values), produced, tuple(ref.operation for ref in refs), refs[0].output)


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
        # parts of batched results, by operations and output
        self._parts: dict[tuple[str, ...], dict[int, list[Any]]] = {}
        # of values before the loop, by the identity of the reading
        self._gathered: dict[int, Any] = {}

    def put(self, operations: tuple[str, ...], outputs: tuple[Any, ...]) -> None:
        """Stores the results of a call, replacing earlier results."""
        self._gathered.clear()
        self._parts.pop(operations, None)
        self._results[operations] = outputs
        self._owner |= dict.fromkeys(operations, operations)

    def arrive(self, instance: Instance, value: Any, evaluation: int | None) -> None:
        """Stores a value from another device, computed in this evaluation or an earlier one."""
        self._gathered.clear()
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
        if self._arrived and value in self._arrived:
            return self._arrived[value]
        operations = self._owner.get(value.operation)
        if operations is None:
            if self._outer is None:
                raise KeyError(f"operation {value.operation} has not run")
            return self._outer.resolve(value)
        whole = self._results[operations][value.output]
        if len(operations) == 1:
            return taken(whole)
        parts = self._parts.setdefault(operations, {})
        if value.output not in parts:
            parts[value.output] = split(taken(whole), [1] * len(operations))
        return parts[value.output][operations.index(value.operation)]

    def gather(self, reading: Reading) -> Any:
        """Concatenates the values that the operations of one call read. Reuses a result of the same
        batch without splitting it, and returns it as `Rows` if other requests shared its call.
        Values from before the loop are gathered once for all readings of the same object.

        Raises RunError for values that cannot be merged, see `merge`.
        """
        outer = self._outer
        if outer is not None and id(reading) in outer._gathered:
            return outer._gathered[id(reading)]
        gathered = self._whole(reading)
        if gathered is None:
            gathered = merge([self.resolve(value) for value in reading.values])
        if outer is not None and reading.produced and all(map(self._is_outer, reading.values)):
            outer._gathered[id(reading)] = gathered
        return gathered

    def _is_outer(self, value: Ref) -> bool:
        return value.operation not in self._owner and value not in self._arrived

    def _whole(self, reading: Reading) -> Any | None:
        if reading.operations is None:
            return None
        outputs = self._results.get(reading.operations)
        if outputs is not None:
            return outputs[reading.output]
        return None if self._outer is None else self._outer._whole(reading)
