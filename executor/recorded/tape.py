"""Records a call as a list of operations over static storages.

Replaces CUDA graphs on a CPU: each operation writes to the memory it wrote to when recorded. For
tests and `katz bench recorded`: recording costs as much as tens of evaluations, and replaying saves
a few per cent at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from katz_graph.executor.recorded.recording import poison
from katz_graph.executor.recorded.trace import Trace, tensors_in


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
