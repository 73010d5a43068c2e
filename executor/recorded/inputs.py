"""Keeps the static tensors that recorded calls read their inputs from."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from katz_graph.executor.worker.batching import mapped


@dataclass(slots=True)
class _Home:
    """Holds the static tensor of an input, and the tensor that it is a copy of."""

    tensor: Tensor
    holds: ReferenceType[Tensor] | None = None


class StaticInputs:
    """Gives each input of a module's calls a static tensor, by its name and form: calls that read
    an input of one name and form share it.
    """

    def __init__(self) -> None:
        self._homes: dict[Hashable, _Home] = {}
        self.size = 0  # in bytes

    def copied(self, given: Mapping[str, Any], lasting: Collection[str]) -> dict[str, Any]:
        """Copies tensors [any shape] into their static ones; returns the structure of those. Inputs
        named in `lasting`, which no one changes as long as they exist, are copied only where
        another tensor's values lie.
        """
        return {name: self._placed(name, value, name in lasting) for name, value in given.items()}

    def _placed(self, name: str, value: Any, lasting: bool) -> Any:
        number = 0

        def place(tensor: Tensor) -> Tensor:
            nonlocal number
            number += 1
            key = name, number, form_of(tensor)
            home = self._homes.get(key)
            if home is None:
                home = self._homes[key] = _Home(_like(tensor))
                self.size += home.tensor.nbytes
            if not lasting or home.holds is None or home.holds() is not tensor:
                home.tensor.copy_(tensor, non_blocking=True)
                home.holds = ref(tensor)
            return home.tensor

        return mapped(value, place)


def form_of(value: Any) -> Hashable:
    """Returns the form of a value: tensors of values of equal form may take each other's places."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(form_of(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, (tuple, list)):
        return tuple(map(form_of, value))
    if isinstance(value, Mapping):
        return tuple((key, form_of(part)) for key, part in value.items())
    return type(value), value


def _like(tensor: Tensor) -> Tensor:
    """Makes a tensor that lies in memory as this one does, unless some of its values share a place,
    which cannot be written into.
    """
    if 0 in tensor.stride():
        return torch.empty_like(tensor)
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
