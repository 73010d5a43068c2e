"""Records a call as a list of operations over static storages, and replays it without running any
of its Python.

It stands in for a CUDA graph on a processor: inputs are copied into static tensors, every operation
writes where it wrote when it was recorded, outputs are copied out. What a graph could not hold is
refused: a wait for the device, a tensor made of Python values, a tensor that is neither an input,
nor a weight, nor made on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from katz_graph.executor.worker.batching import mapped, tensors_of

aten = torch.ops.aten
ALLOCATES = {
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
}
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
    """Reports that a call does what no recorded call can do."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """Holds one operation of a recorded call. `made`: the static tensors that it writes; none where
    it works in place.
    """

    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    made: tuple[Tensor, ...]


class Tape:
    """Records `call` on static copies of the tensors of `given`; weights are those of `module`,
    where they lie. NotRecordable names the operation.

    `strict`: before each replay all that was made on the way is overwritten with NaN, and so are
    outputs once they are taken: a value of an earlier replay that is read is seen in the result.
    """

    def __init__(
        self, call: Callable[[Any], Any], given: Any, module: nn.Module | None, strict: bool = False
    ) -> None:
        self._strict = strict
        static = mapped(given, _static)
        self._inputs = tensors_of(static)
        weights = () if module is None else (*module.parameters(), *module.buffers())
        recording = _Recording({_storage(tensor) for tensor in (*self._inputs, *weights)})
        with recording:
            self._outputs = call(static)
        self._operations = recording.operations
        self._made = [
            *recording.allocated,
            *(tensor for operation in self._operations for tensor in operation.made),
        ]

    def replay(self, given: Any) -> Any:
        """Returns the outputs for other tensors of the same form."""
        for static, tensor in zip(self._inputs, tensors_of(given), strict=True):
            static.copy_(tensor)
        if self._strict:
            _poison(self._made)
        for operation in self._operations:
            results = _tensors(operation.function(*operation.arguments, **operation.options))
            for made, result in zip(operation.made, results, strict=bool(operation.made)):
                made.copy_(result)
        outputs = mapped(self._outputs, torch.clone)
        if self._strict:
            _poison([*self._made, *self._inputs])
        return outputs


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists the operations of a call. Views of what is there are no operations: they stay where
    they are.
    """

    def __init__(self, owned: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[_Operation] = []
        self.allocated: list[Tensor] = []  # without being written
        self._owned = owned

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        self._check(function, _tensors((args, options)))
        read = {_storage(tensor) for tensor in _tensors((args, options))}
        result = function(*args, **options)
        results = _tensors(result)
        apart = {_storage(tensor) not in read for tensor in results}
        if len(apart) > 1:
            raise NotRecordable(f"{function} gives new tensors beside views")
        if function._overloadpacket in ALLOCATES:
            self.allocated += results
        elif apart == {True} or function._schema.is_mutable:
            self.operations.append(
                _Operation(function, args, options, tuple(results) if apart == {True} else ())
            )
        self._owned.update(map(_storage, results))
        return result

    def _check(self, function: Any, tensors: list[Tensor]) -> None:
        if function._overloadpacket in WAITS:
            raise NotRecordable(f"{function} waits for the device, to look at a tensor's value")
        if function._overloadpacket in FROM_PYTHON:
            raise NotRecordable(f"{function} makes a tensor of Python values")
        if any(_storage(tensor) not in self._owned for tensor in tensors):
            raise NotRecordable(
                f"{function} reads a tensor that is neither an input, nor a weight, nor "
                "made by the call"
            )


def _static(tensor: Tensor) -> Tensor:
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _poison(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() or tensor.is_complex() else 1)
