"""Defines what a backend records: a call over static tensors that can be carried out again without
its Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor


class Recording(Protocol):
    """Holds a recorded call. `outputs`: a structure of static tensors that `replay` writes, which
    the next replay of any recording of the backend may overwrite. `size`: bytes of what it holds.
    """

    outputs: Any
    size: int

    def replay(self) -> None: ...

    def taken(self) -> None:
        """Is told that outputs were copied."""


class Backend(Protocol):
    """Records calls. Used by one thread. `room`: bytes that its recordings may hold. `strict`: what
    no recorded call may rely on is overwritten, see `poison`.
    """

    @property
    def room(self) -> float: ...

    @property
    def strict(self) -> bool: ...

    def record(self, call: Callable[[], Any], given: Iterable[Tensor]) -> Recording:
        """Records a call that reads the tensors `given`, where they lie: its static inputs and the
        weights. NotRecordable says what of it no recording could hold.
        """

    def drop(self) -> None:
        """Is told that none of its recordings will be replayed again."""


def poison(tensors: Iterable[Tensor]) -> None:
    """Overwrites tensors with NaN, and with 1 where there is none."""
    for tensor in tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() or tensor.is_complex() else 1)
