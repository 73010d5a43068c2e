"""Merges the inputs of several operations or requests into one call, splits the call's results, and
maps functions over the tensors of a structure. Must know only tensors, frozen dataclasses, tuples
and mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import RunError
from katz_graph.host.transfer import to_device


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenates tensors along the batch."""
    return torch.cat(list(tensors))


def merge(
    values: Sequence[Any],
    what: str = "values",
    concatenate: Callable[[Sequence[Tensor]], Tensor] = concatenated,
) -> Any:
    """Merges equal structures along the batch: tensors [B, ...] -> one tensor [sum of B, ...].
    Tensor shapes may differ only in B; all other values must be equal.

    Raises RunError naming the difference if the values cannot share a call.
    """
    first = values[0]
    if len(values) == 1:
        return first
    if any(type(value) is not type(first) for value in values):
        raise _apart(what, [type(value).__name__ for value in values])
    if isinstance(first, Tensor):
        _check_shapes(values, what)
        return concatenate(values)
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        parts = {
            name: merge(
                [getattr(value, name) for value in values],
                f"{type(first).__name__}.{name}",
                concatenate,
            )
            for name in names
        }
        return replace(first, **parts)
    if isinstance(first, tuple) and len({len(value) for value in values}) == 1:
        return tuple(
            merge(parts, f"{what}[{number}]", concatenate)
            for number, parts in enumerate(zip(*values, strict=True))
        )
    if isinstance(first, Mapping) and all(value.keys() == first.keys() for value in values):
        return {
            key: merge([value[key] for value in values], f"{what}[{key!r}]", concatenate)
            for key in first
        }
    if any(value != first for value in values):
        raise _apart(what, values)
    return first


def _check_shapes(tensors: Sequence[Tensor], what: str) -> None:
    if len({(tensor.shape[1:], tensor.dtype, tensor.device) for tensor in tensors}) > 1:
        raise _apart(
            what, [f"{list(tensor.shape)} {tensor.dtype} on {tensor.device}" for tensor in tensors]
        )


def _apart(what: str, values: Sequence[Any]) -> RunError:
    shown = " and ".join(str(value) for value in values)
    return RunError(
        f"{what} of operations that share a call: got {shown}, expected equal "
        f'values; set "batching": '
        "false in the workflow's run options"
    )


def split(value: Any, sizes: Sequence[int]) -> list[Any]:
    """Splits a merged value into parts in proportion to `sizes`, such as their rows; tensors are
    views.
    """
    if len(sizes) == 1:
        return [value]
    if isinstance(value, Tensor):
        rows = len(value) // sum(sizes)  # for each unit of size
        return list(torch.split_with_sizes(value, [rows * size for size in sizes]))
    if is_dataclass(value) and not isinstance(value, type):
        parts = {name: split(getattr(value, name), sizes) for name in _tensor_fields(value)}
        return [
            replace(value, **{name: part[index] for name, part in parts.items()})
            for index in range(len(sizes))
        ]
    if isinstance(value, tuple):
        return [
            tuple(parts) for parts in zip(*(split(part, sizes) for part in value), strict=True)
        ] or [()] * len(sizes)
    if isinstance(value, Mapping):
        parts = {key: split(part, sizes) for key, part in value.items()}
        return [{key: part[index] for key, part in parts.items()} for index in range(len(sizes))]
    return [value] * len(sizes)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns the same structure with `change` applied to its tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{name: mapped(getattr(value, name), change) for name in _tensor_fields(value)}
        )
    if isinstance(value, tuple):
        return tuple(mapped(part, change) for part in value)
    if isinstance(value, Mapping):
        return {key: mapped(part, change) for key, part in value.items()}
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """Returns the tensors of a structure in the order of `mapped`."""
    found: list[Tensor] = []
    mapped(value, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def on_device(value: Any, device: torch.device) -> Any:
    """Returns the same structure with its tensors on a device."""
    return mapped(value, lambda tensor: to_device(tensor, device))


def received(value: Any, device: torch.device) -> Any:
    """Returns a received structure with its tensors on a device, in memory of this process: a GPU
    copies them. On a CPU they stay in the memory that the sender shares.
    """
    return mapped(
        value,
        lambda tensor: (
            tensor.to(device, copy=True) if tensor.is_cuda else to_device(tensor, device)
        ),
    )


def _tensor_fields(value: Any) -> list[str]:
    return [
        field.name
        for field in fields(value)
        if isinstance(getattr(value, field.name), (Tensor, tuple, Mapping))
        or is_dataclass(getattr(value, field.name))
    ]
