"""Defines the interface of recording backends: they record a call over static tensors, and replay
it without running Python code.
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
        """Signals that the outputs were copied."""


class Backend(Protocol):
    """Records calls. Used by one thread. `room`: budget for recordings in bytes. `strict`: memory
    on which a recorded call must not rely is overwritten (`poison`).
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
        """Signals that no existing recording will be replayed."""


def poison(tensors: Iterable[Tensor]) -> None:
    """Overwrites tensors with NaN, or with 1 if their dtype has no NaN."""
    for tensor in tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() or tensor.is_complex() else 1)
