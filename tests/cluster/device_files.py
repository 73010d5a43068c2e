"""Stands in for device memory: files that two processes map."""

from __future__ import annotations

import itertools
import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from katz_graph.core.errors import RunError
from katz_graph.executor.transport.segments import Array

GARBAGE = 0xEE  # content of freed memory


class FileAllocator:
    """Implements `DeviceAllocator`. Every allocation is a file in `folder`, which is overwritten
    and removed when it is freed. `refuses`: the reason why `allocate` or `open` fails, by name.
    """

    device = torch.device("cpu")

    def __init__(self, folder: str, refuses: dict[str, str] | None = None) -> None:
        self._folder, self._refuses = Path(folder), refuses or {}
        self._numbers = itertools.count()

    def allocate(self, capacity: int) -> tuple[Array, bytes]:
        self._check("allocate")
        path = self._folder / f"{os.getpid()}-{id(self)}-{next(self._numbers)}"
        path.write_bytes(bytes(capacity))
        memory = _mapped(path)
        weakref.finalize(memory, _free, path)
        return memory, os.fsencode(path)

    def open(self, handle: bytes, closed: Callable[[], object]) -> Array:
        self._check("open")
        memory = _mapped(Path(os.fsdecode(handle)))
        weakref.finalize(memory, closed)
        return memory

    def _check(self, what: str) -> None:
        if why := self._refuses.get(what):
            raise RunError(why)


def _mapped(path: Path) -> Array:
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


def _free(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes([GARBAGE]) * os.fstat(file.fileno()).st_size)
    path.unlink()
