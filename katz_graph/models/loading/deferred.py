"""Creates tensors computed on demand, so that renaming and cutting a file's tensors needs no memory
for values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

Compute = Callable[[], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Quantised:
    """Holds the stored numbers of a weight [N, ...], the scales of their rows [N, 1, ...], and the
    number of inputs that are rotated together.
    """

    codes: Tensor
    scales: Tensor
    group: int


class Deferred(Tensor):
    """Represents a tensor by shape and dtype, without values. Torch functions of a deferred tensor
    are also deferred. `quantised`: the stored form of the tensor; functions that only select or
    reorder rows preserve it.
    """

    outline: Tensor  # on torch's meta device
    compute: Compute
    quantised: Quantised | None = None

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        given = args, kwargs or {}
        outlines, named = _mapped(_outline, given)
        made = function(*outlines, **named)
        whole = partial(_computed, function, given)
        if type(made) not in (tuple, list):
            return _with_stored_forms([_deferred(made, whole)], function, *given)[0]
        found = [_deferred(part, partial(_part, whole, n)) for n, part in enumerate(made)]
        return _with_stored_forms(found, function, *given)


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


def quantised(wide: Any, codes: Tensor, scales: Tensor, group: int) -> Tensor:
    """Adds the stored form to a deferred weight. `codes` [N, ...]; `scales`: one, or one a row."""
    rows = scales.float().reshape(-1, *(1,) * (codes.ndim - 1))
    rows = rows.expand(len(codes), *rows.shape[1:])
    late = _deferred(codes.to("meta"), lambda: codes)
    wide.quantised = Quantised(late, rows, group)
    found: Tensor = wide
    return found


def now(tensor: Any) -> Any:
    """Computes a deferred tensor. Returns other values unchanged."""
    return tensor.compute() if isinstance(tensor, Deferred) else tensor


def _deferred(outline: Any, compute: Compute) -> Any:
    if not isinstance(outline, Tensor):
        return outline  # a shape, a number
    made = outline.as_subclass(Deferred)
    made.outline, made.compute = outline, compute
    return made


ROWS: dict[Any, int] = {
    **dict.fromkeys((torch.cat, torch.concat), 1),
    **dict.fromkeys((torch.chunk, torch.split, Tensor.chunk, Tensor.split, Tensor.roll), 2),
    Tensor.split_with_sizes: 2,
}
"""Maps functions that work along one axis to the position of that argument."""
UNCHANGED = (Tensor.contiguous, Tensor.clone, Tensor.detach)


def _with_stored_forms(
    made: list[Any], function: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> list[Any]:
    """Adds the stored forms to the results of a function that only selects or reorders rows."""
    sources = args[0] if args and type(args[0]) in (tuple, list) else args[:1]
    stored: list[Quantised | None] = [getattr(one, "quantised", None) for one in sources]
    alike = {None if one is None else (one.codes.dtype, one.group) for one in stored}
    if None in alike or len(alike) != 1 or not _selects_rows(function, args, kwargs):
        return made
    ((_, group),) = filter(None, alike)
    codes, scales = (
        function(*_mapped(partial(_stored_part, name), args), **kwargs)
        for name in ("codes", "scales")
    )
    parts = zip(codes, scales, strict=True) if type(codes) in (tuple, list) else [(codes, scales)]
    for one, (numbers, rows) in zip(made, parts, strict=True):
        one.quantised = Quantised(numbers, rows, group)
    return made


def _selects_rows(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    if function in ROWS:
        place = ROWS[function]
        given = kwargs.get("dim", kwargs.get("dims", args[place] if len(args) > place else 0))
        return given in (0, (0,), [0])
    if function is Tensor.__getitem__:
        first, *others = args[1] if type(args[1]) is tuple else (args[1],)
        return type(first) is slice and all(one == slice(None) for one in others)
    return function in UNCHANGED


def _stored_part(name: str, value: Any) -> Any:
    return getattr(value.quantised, name) if isinstance(value, Deferred) else value


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
