"""Makes tensors that are computed when they are asked for, so that what renames and cuts up the
tensors of a file needs no memory for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

Compute = Callable[[], Tensor]


class Deferred(Tensor):
    """Stands for a tensor: has its shape and number format, and no values. What torch computes of
    it is deferred too.
    """

    compute: Compute

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        outlines = _mapped(_outline, args)
        made = super().__torch_function__(function, types, outlines, given)  # type: ignore[no-untyped-call]
        whole = partial(_computed, function, args, given)
        if isinstance(made, Deferred):
            made.compute = whole
        elif isinstance(made, (tuple, list)):
            for number, part in enumerate(made):
                if isinstance(part, Deferred):
                    part.compute = partial(_part, whole, number)
        return made


class Latest:
    """Keeps what was computed last, so that the parts of a tensor, asked for one after the other,
    are cut out of one computation.
    """

    def __init__(self) -> None:
        self._compute: Compute | None = None
        self._made: Tensor | None = None

    def __call__(self, compute: Compute) -> Tensor:
        if compute is not self._compute or self._made is None:
            self._compute = self._made = None  # before the next takes memory
            self._compute, self._made = compute, compute()
        return self._made


def deferred(
    shape: Sequence[int], dtype: torch.dtype, compute: Compute, latest: Latest
) -> Deferred:
    """Returns a tensor of the host that `compute` makes when it is asked for."""
    made = torch.empty(tuple(shape), dtype=dtype, device="meta").as_subclass(Deferred)
    made.compute = lambda: latest(compute)
    return made


def now(tensor: Any) -> Any:
    """Computes a deferred tensor; returns anything else as it is."""
    return tensor.compute() if isinstance(tensor, Deferred) else tensor


def _computed(function: Any, args: Sequence[Any], given: Any) -> Any:
    return function(*_mapped(now, args), **given)


def _part(whole: Callable[[], Sequence[Tensor]], number: int) -> Tensor:
    return whole()[number]


def _outline(value: Any) -> Any:
    plain = isinstance(value, Tensor) and not isinstance(value, Deferred)
    return value.to("meta") if plain else value


def _mapped(change: Callable[[Any], Any], values: Sequence[Any]) -> Any:
    """Changes the tensors among the arguments of a function."""
    changed = [
        _mapped(change, value) if type(value) in (tuple, list) else change(value)
        for value in values
    ]
    return changed if isinstance(values, list) else tuple(changed)
