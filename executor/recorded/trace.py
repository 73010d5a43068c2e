"""Checks the operations of a call, and rejects those that cannot be recorded: waiting for the
device, creating a tensor from Python values, reading a tensor that is neither an input, nor a
weight, nor an intermediate result, and writing to an input or a weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
WAITS = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.equal,
    aten.is_nonzero,
    aten.item,
    aten.masked_select,
    aten._unique2,
}
FROM_PYTHON = {aten.lift_fresh, aten.lift_fresh_copy, aten.lift}


class NotRecordable(RuntimeError):
    """Raised when a call contains an operation that cannot be recorded."""


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Checks the operations inside its `with` statement, without storing them. Raises NotRecordable
    naming the operation. The tensors `given` must exist until the end.
    """

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = set(map(_storage, given))
        self._made: set[int] = set()  # even if freed: only tensors made here reuse addresses

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        self._check(function, args, options)
        read = set(map(_storage, tensors_in((args, options))))
        result = function(*args, **options)
        results = tensors_in(result)
        apart = {_storage(tensor) not in read for tensor in results}
        if len(apart) > 1:
            raise NotRecordable(f"{function} returns new tensors together with views")
        made = results if apart == {True} else []
        self._made.update(map(_storage, made))
        self._done(function, args, options, made)
        return result

    def _done(self, function: Any, args: Any, options: Any, made: list[Tensor]) -> None:
        """Checks an operation that has run, and the tensors that it created, excluding views."""

    def _check(self, function: Any, args: Any, options: Any) -> None:
        if function._overloadpacket in WAITS:
            raise NotRecordable(f"{function} waits for the device to read a tensor's value")
        if function._overloadpacket in FROM_PYTHON:
            raise NotRecordable(f"{function} makes a tensor from Python values")
        if not self._there(tensors_in((args, options))):
            raise NotRecordable(
                f"{function} reads a tensor that is neither an input, nor a weight, nor "
                "made by the call"
            )
        written = tensors_in(_written(function, args, options))
        if any(_storage(tensor) in self._given for tensor in written):
            raise NotRecordable(f"{function} writes into an input or a weight")

    def _there(self, tensors: list[Tensor]) -> bool:
        return all(
            _storage(tensor) in self._given or _storage(tensor) in self._made for tensor in tensors
        )


def tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _written(function: Any, args: Any, options: Any) -> list[Any]:
    """Returns the arguments that an operation writes to."""
    schema = function._schema
    if not schema.is_mutable:
        return []
    by_place = {one.name: value for one, value in zip(schema.arguments, args, strict=False)}
    return [
        value
        for one in schema.arguments
        if one.is_write and (value := {**by_place, **options}.get(one.name)) is not None
    ]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
