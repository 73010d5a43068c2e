"""Records a call as a list of operations over static storages.

Replaces CUDA graphs on a CPU: each operation writes to the memory it wrote to when recorded. For
tests and `katz bench recorded`: recording costs as much as tens of evaluations, and replaying saves
a few per cent at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from katz_graph.executor.recorded.recording import poison
from katz_graph.executor.recorded.trace import Watch, tensors_in

aten = torch.ops.aten
ALLOCATES = {
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
}


class Tapes:
    """Implements `Backend`. `strict`: overwrites intermediate tensors with NaN before each replay,
    and outputs after they are copied, so a read of a stale value shows in the result.
    """

    def __init__(self, strict: bool = False, room: float = math.inf) -> None:
        self.strict, self.room = strict, room

    def record(self, call: Callable[[], Any], given: Iterable[Tensor]) -> Tape:
        with Trace(given) as trace:
            outputs = call()
        return Tape(trace, outputs, self.strict)

    def drop(self) -> None:
        """Does nothing: tapes own their memory."""


class Tape:
    """Implements `Recording`."""

    def __init__(self, trace: Trace, outputs: Any, strict: bool) -> None:
        self.outputs, self._strict = outputs, strict
        self._operations = trace.operations
        self._made = [
            *trace.allocated,
            *(tensor for operation in self._operations for tensor in operation.made),
        ]
        self.size = sum(tensor.nbytes for tensor in self._made)

    def replay(self) -> None:
        self.taken()
        for operation in self._operations:
            results = tensors_in(operation.function(*operation.arguments, **operation.options))
            for made, result in zip(operation.made, results, strict=bool(operation.made)):
                made.copy_(result)

    def taken(self) -> None:
        if self._strict:
            poison(self._made)


@dataclass(frozen=True, slots=True)
class Operation:
    """Holds one operation of a traced call. `made`: the tensors that it creates; empty if it works
    in place.
    """

    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    made: tuple[Tensor, ...]


class Trace(Watch):  # type: ignore[no-untyped-call]
    """Lists the operations, and keeps their inputs and results alive. Omits views, which stay valid
    without being replayed.
    """

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__(given)
        self.operations: list[Operation] = []
        self.allocated: list[Tensor] = []  # created without writing values

    def _done(self, function: Any, args: Any, options: Any, made: list[Tensor]) -> None:
        if function._overloadpacket in ALLOCATES:
            self.allocated += made
        elif made or function._schema.is_mutable:
            self.operations.append(Operation(function, args, options, tuple(made)))
