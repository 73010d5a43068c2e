"""Defines the interface of recording backends: they record a call over static tensors, and repeat
it without running its Python code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor


class Recording(Protocol):
    """Holds a recorded call."""

    outputs: Any
    """Static tensors that `replay` writes; the next replay of any recording of the backend may
    overwrite them.
    """
    size: int
    """Bytes that the recording holds."""

    def replay(self) -> None: ...

    def taken(self) -> None:
        """Called after the outputs have been copied."""


class Backend(Protocol):
    """Records calls. Used by one thread. `room`: budget of its recordings in bytes. `strict`:
    memory that a recorded call must not rely on is overwritten, see `poison`.
    """

    @property
    def room(self) -> float: ...

    @property
    def strict(self) -> bool: ...

    def record(self, call: Callable[[], Any], given: Iterable[Tensor]) -> Recording:
        """Records a call that reads the tensors `given` at their addresses: its static inputs and
        the weights. Raises NotRecordable, naming the operation, if the call cannot be recorded.
        """

    def drop(self) -> None:
        """Called when none of its recordings will be replayed again."""


def poison(tensors: Iterable[Tensor]) -> None:
    """Overwrites tensors with NaN, or with 1 if their dtype has no NaN."""
    for tensor in tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() or tensor.is_complex() else 1)
