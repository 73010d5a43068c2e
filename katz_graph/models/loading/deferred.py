"""Creates tensors computed on demand, so that renaming and cutting a file's tensors needs no memory
for values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

Compute = Callable[[], Tensor]


class Deferred(Tensor):
    """Represents a tensor by shape and dtype, without values. Torch functions of a deferred tensor
    are also deferred.
    """

    outline: Tensor  # on torch's meta device
    compute: Compute

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = args, kwargs or {}
        outlines, named = _mapped(_outline, given)
        made = function(*outlines, **named)
        whole = partial(_computed, function, given)
        if type(made) in (tuple, list):
            return [_deferred(part, partial(_part, whole, n)) for n, part in enumerate(made)]
        return _deferred(made, whole)


class Latest:
    """Caches the last computed tensor, so that consecutive reads of its parts compute it once."""

    def __init__(self) -> None:
        self._compute: Compute | None = None
        self._made: Tensor | None = None

    def __call__(self, compute: Compute) -> Tensor:
        if compute is not self._compute or self._made is None:
            self._compute = self._made = None  # frees memory before the next computation
            self._compute, self._made = compute, compute()
        return self._made


def deferred(shape: Sequence[int], dtype: torch.dtype, compute: Compute, latest: Latest) -> Tensor:
    """Returns a deferred tensor, computed on the host on demand."""
    outline = torch.empty(tuple(shape), dtype=dtype, device="meta")
    made: Tensor = _deferred(outline, partial(latest, compute))
    return made


def now(tensor: Any) -> Any:
    """Computes a deferred tensor. Returns other values unchanged."""
    return tensor.compute() if isinstance(tensor, Deferred) else tensor


def _deferred(outline: Any, compute: Compute) -> Any:
    if not isinstance(outline, Tensor):
        return outline  # a shape, a number
    made = outline.as_subclass(Deferred)
    made.outline, made.compute = outline, compute
    return made


def _computed(function: Any, given: Any) -> Any:
    args, named = _mapped(now, given)
    return function(*args, **named)


def _part(whole: Callable[[], Sequence[Tensor]], number: int) -> Tensor:
    return whole()[number]


def _outline(value: Any) -> Any:
    if isinstance(value, Deferred):
        return value.outline
    return value.to("meta") if isinstance(value, Tensor) else value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Applies `change` to the arguments of a function, inside lists, tuples and dicts."""
    if type(value) in (tuple, list):
        return type(value)(_mapped(change, one) for one in value)
    if type(value) is dict:
        return {name: _mapped(change, one) for name, one in value.items()}
    return change(value)
