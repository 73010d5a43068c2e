"""Holds the values of one evaluation (or of what precedes the loop), by the operations that made
them; merges and splits those of batched calls.

Values of earlier evaluations that this one reads are kept beside them, by instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.errors import RunError
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
        self._results[operations] = outputs
        self._owner |= dict.fromkeys(operations, operations)

    def arrive(self, instance: Instance, value: Any, evaluation: int | None) -> None:
        """Takes what another device made, in this evaluation or in an earlier one."""
        if instance.evaluation == evaluation:
            self._arrived[instance.ref] = value
        else:
            self._kept[instance] = value

    def keep(self, instances: Sequence[Instance], evaluation: int) -> dict[Instance, Any]:
        """Returns these instances, for the evaluation after this one."""
        return {one: self.resolve(one.ref) if one.evaluation == evaluation else self._kept[one] for one in instances}

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
            for name, outputs in zip(operations, split(self._results[operations], len(operations)), strict=True):
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
        if self._outer is not None and all(isinstance(value, Ref) and self._is_outer(value) for value in values):
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


def merge(values: Sequence[Any], what: str = "values") -> Any:
    """Merges equal structures with tensors [B, ...] -> one with [sum of B, ...]. Tensors have one
    shape but for B, all else has to be equal.

    RunError names what differs: it cannot be in one call.
    """
    first = values[0]
    if len(values) == 1:
        return first
    if any(type(value) is not type(first) for value in values):
        raise _apart(what, [type(value).__name__ for value in values])
    if isinstance(first, Tensor):
        return _concatenated(values, what)
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        parts = {name: merge([getattr(value, name) for value in values], f"{type(first).__name__}.{name}") for name in names}
        return replace(first, **parts)
    if isinstance(first, tuple) and len({len(value) for value in values}) == 1:
        return tuple(merge(parts, f"{what}[{number}]") for number, parts in enumerate(zip(*values, strict=True)))
    if isinstance(first, Mapping) and all(value.keys() == first.keys() for value in values):
        return {key: merge([value[key] for value in values], f"{what}[{key!r}]") for key in first}
    if any(value != first for value in values):
        raise _apart(what, values)
    return first


def _concatenated(tensors: Sequence[Tensor], what: str) -> Tensor:
    if len({(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors}) > 1:
        raise _apart(what, [f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}" for tensor in tensors])
    return torch.cat(list(tensors))


def _apart(what: str, values: Sequence[Any]) -> RunError:
    shown = " and ".join(str(value) for value in values)
    return RunError(
        f'{what} of operations that share a call: {shown}, expected equal ones; set "batching": false in the workflow\'s run options'
    )


def split(value: Any, count: int) -> list[Any]:
    """Splits what `merge` made into `count` equal parts; tensors are views."""
    if count == 1:
        return [value]
    if isinstance(value, Tensor):
        return list(value.chunk(count))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {name: split(getattr(value, name), count) for name in _tensor_fields(value)}
        return [replace(value, **{name: part[index] for name, part in parts.items()}) for index in range(count)]
    if isinstance(value, tuple):
        return [tuple(parts) for parts in zip(*(split(part, count) for part in value), strict=True)] or [()] * count
    if isinstance(value, Mapping):
        parts = {key: split(part, count) for key, part in value.items()}
        return [{key: part[index] for key, part in parts.items()} for index in range(count)]
    return [value] * count


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns the same structure with its tensors changed."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{name: mapped(getattr(value, name), change) for name in _tensor_fields(value)})
    if isinstance(value, tuple):
        return tuple(mapped(part, change) for part in value)
    if isinstance(value, Mapping):
        return {key: mapped(part, change) for key, part in value.items()}
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """Returns the tensors of a structure, in the order in which `mapped` meets them."""
    found: list[Tensor] = []
    mapped(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def on_device(value: Any, device: torch.device) -> Any:
    """Returns the same structure with its tensors on a device."""
    return mapped(value, lambda tensor: tensor.to(device))


def _tensor_fields(value: Any) -> list[str]:
    return [
        field.name
        for field in fields(value)
        if isinstance(getattr(value, field.name), (Tensor, tuple, Mapping)) or is_dataclass(getattr(value, field.name))
    ]
