"""Holds outputs of shared calls, whose rows belong to several requests."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from katz_graph.executor.calls.batching import mapped, outline


class Form:
    """Compares nested tuples; computes their hash once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Form) and self._hash == other._hash and self._parts == other._parts
        )

    def __hash__(self) -> int:
        return self._hash


@dataclass(eq=False)
class SharedOutput:
    """Holds an output of a call with `rows` rows."""

    value: Any
    rows: int

    @cached_property
    def form(self) -> Hashable:
        """Returns the structure and the forms of the tensors; None if a tensor has another number
        of rows.
        """
        tensors: list[Tensor] = []
        structure = outline(self.value, tensors)
        if any(tensor.shape[0] != self.rows for tensor in tensors):
            return None
        return Form(structure, *[form_of(tensor) for tensor in tensors])


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Holds `size` rows of an output, beginning at `start`. They are cut out only if a request
    reads them without others.
    """

    output: SharedOutput
    start: int
    size: int

    @property
    def value(self) -> Any:
        """Returns the output with these rows only; its tensors are views."""
        return mapped(self.output.value, self._cut)

    def _cut(self, tensor: Tensor) -> Tensor:
        rows = len(tensor) // self.output.rows  # for each row of the call
        return tensor.narrow(0, rows * self.start, rows * self.size)


def taken(value: Any) -> Any:
    """Cuts the rows of a request out of an output; returns other values unchanged."""
    return value.value if isinstance(value, Rows) else value


def form_of(tensor: Tensor, first: int = 1) -> Hashable:
    """Returns the form of a tensor: tensors of equal form can be stacked. `first`: sizes of earlier
    dimensions may differ.
    """
    return tensor.shape[first:], tensor.stride()[1:], tensor.dtype, tensor.device
