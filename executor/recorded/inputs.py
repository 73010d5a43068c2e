"""Stores the static tensors that recorded calls read their inputs from."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from katz_graph.executor.calls.batching import mapped, outline, tensors_of


@dataclass(slots=True)
class Home:
    """Holds the static tensor of an input, and a reference to the source of its values. `lasting`:
    sources of this input do not change while they exist.
    """

    tensor: Tensor
    lasting: bool
    _holds: ReferenceType[Tensor] | None = None

    def take(self, given: Tensor) -> None:
        """Copies the values of a tensor of equal form, unless already copied."""
        if self.lasting and self._holds is not None and self._holds() is given:
            return
        self.tensor.copy_(given, non_blocking=True)
        self._holds = ref(given)


class StaticInputs:
    """Assigns each input of a module's calls a static tensor; calls share inputs of equal name and
    form.
    """

    def __init__(self) -> None:
        self._homes: dict[Hashable, Home] = {}

    @property
    def size(self) -> int:
        """Returns the bytes of all static tensors."""
        return sum(home.tensor.nbytes for home in self._homes.values())

    @property
    def known(self) -> frozenset[Hashable]:
        """Returns the names of the existing static tensors."""
        return frozenset(self._homes)

    def keep(self, names: Collection[Hashable]) -> None:
        """Drops all static tensors except these, after a failed recording created others."""
        self._homes = {name: home for name, home in self._homes.items() if name in names}

    def homes(
        self, given: Mapping[str, Any], lasting: Collection[str]
    ) -> tuple[dict[str, Any], list[Home]]:
        """Returns the structure of `given` with static tensors, and their homes in the order of
        `tensors_of`. `lasting` names inputs that do not change.
        """
        found = [
            self._home(name, number, tensor, name in lasting)
            for name, value in given.items()
            for number, tensor in enumerate(tensors_of(value))
        ]
        rest = iter(found)
        return mapped(given, lambda _: next(rest).tensor), found

    def _home(self, name: str, number: int, tensor: Tensor, lasting: bool) -> Home:
        key = name, number, form_of(tensor), lasting
        if key not in self._homes:
            self._homes[key] = Home(_like(tensor), lasting)
        return self._homes[key]


def form_of(value: Any) -> Hashable:
    """Returns the form of a value; tensors in values of equal form are interchangeable."""
    tensors: list[Tensor] = []
    form = outline(value, tensors)
    return form, *[(one.shape, one.stride(), one.dtype, one.device) for one in tensors]


def _like(tensor: Tensor) -> Tensor:
    """Returns an uninitialized tensor with the strides of this one; contiguous if a stride is 0,
    because overlapping memory cannot be written.
    """
    if 0 in tensor.stride():
        return torch.empty_like(tensor)
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
