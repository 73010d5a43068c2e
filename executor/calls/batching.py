"""Merges the inputs of several operations or requests into one call, splits the call's results, and
maps functions over the tensors of a structure. Must know only tensors, frozen dataclasses, tuples
and mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
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
    if names := field_names(first.__class__):
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
    cut = []
    for tensor in tensors_of(value):
        rows = len(tensor) // sum(sizes)  # for each unit of size
        cut.append(tensor.split_with_sizes([rows * size for size in sizes]))
    parts = []
    for number in range(len(sizes)):
        rest = iter([views[number] for views in cut])
        parts.append(mapped(value, lambda _, rest=rest: next(rest)))  # type: ignore[misc]
    return parts


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Returns the same structure with `change` applied to its tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if names := field_names(value.__class__):
        parts = {}
        for name in names:
            old = getattr(value, name)
            if (new := mapped(old, change)) is not old:
                parts[name] = new
        return replace(value, **parts) if parts else value
    if isinstance(value, tuple):
        return tuple([mapped(part, change) for part in value])
    if isinstance(value, (dict, Mapping)):
        return {key: mapped(part, change) for key, part in value.items()}
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """Returns the tensors of a structure in the order of `mapped`."""
    found: list[Tensor] = []
    outline(value, found)
    return found


def outline(value: Any, found: list[Tensor]) -> Hashable:
    """Returns a structure without its tensors, which it appends to `found` in the order of
    `mapped`.
    """
    if isinstance(value, Tensor):
        found.append(value)
        return Tensor
    if names := field_names(value.__class__):
        return (type(value), *[outline(getattr(value, name), found) for name in names])
    if isinstance(value, tuple):
        return (tuple, *[outline(part, found) for part in value])
    if isinstance(value, (dict, Mapping)):
        return (dict, *[(key, outline(part, found)) for key, part in value.items()])
    if isinstance(value, list):  # a constant, as for `mapped`
        return (list, *[outline(part, []) for part in value])
    return type(value), value


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Returns the names of a dataclass's fields; none for other classes."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()


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
