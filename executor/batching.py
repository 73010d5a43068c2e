"""Puts what several equal operations take into one call, takes results apart, and moves them. Knows tensors and frozen dataclasses only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


def merge(values: Sequence[Any]) -> Any:
    """Equal structures with tensors [B, ...] -> one with [sum of B, ...]. What holds no tensor is taken from the first."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(values))
    if is_dataclass(first) and not isinstance(first, type):
        return replace(first, **{name: merge([getattr(value, name) for value in values]) for name in _tensor_fields(first)})
    if isinstance(first, tuple):
        return tuple(merge(parts) for parts in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {key: merge([value[key] for value in values]) for key in first}
    return first


def split(value: Any, count: int) -> list[Any]:
    """The inverse of `merge` for `count` equal parts; tensors are views."""
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


def on_device(value: Any, device: torch.device) -> Any:
    """The same structure with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{name: on_device(getattr(value, name), device) for name in _tensor_fields(value)})
    if isinstance(value, tuple):
        return tuple(on_device(part, device) for part in value)
    if isinstance(value, Mapping):
        return {key: on_device(part, device) for key, part in value.items()}
    return value


def _tensor_fields(value: Any) -> list[str]:
    return [
        field.name
        for field in fields(value)
        if isinstance(getattr(value, field.name), (Tensor, tuple, Mapping)) or is_dataclass(getattr(value, field.name))
    ]
