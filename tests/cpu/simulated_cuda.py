"""Stands for the streams of a GPU: what is enqueued on one is done late, when somebody waits for it,
and of other streams only what it waits for.

Knows copies between tensors, which are enqueued; all else that is to be enqueued is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Stream:
    def __init__(self, device: Any = None) -> None:
        self._work: list[Callable[[], object]] = []
        self.done = 0

    @property
    def enqueued(self) -> int:
        return len(self._work)

    def enqueue(self, work: Callable[[], object]) -> None:
        self._work.append(work)

    def wait_stream(self, other: Stream) -> None:
        there = other.enqueued
        self.enqueue(lambda: other.run(there))

    def run(self, until: int) -> None:
        """Does what is first in the queue, so many of all that was ever enqueued."""
        while self.done < until:
            work, self.done = self._work[self.done], self.done + 1
            work()


class Event:
    def __init__(self, **options: Any) -> None:
        self._stream, self._until = DEFAULT, 0

    def record(self, stream: Stream) -> None:
        self._stream, self._until = stream, stream.enqueued

    def synchronize(self) -> None:
        self._stream.run(self._until)


DEFAULT = Stream()


class Gpu(TorchFunctionMode):
    """Enqueues copies on the stream that is current. `held`: tensors whose memory waits for a
    stream.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = DEFAULT
        self.held: list[tuple[Tensor, Stream]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        if function is Tensor.copy_:
            self.current.enqueue(lambda: _now(function, *args, **options))
            return args[0]
        if options.pop("pin_memory", False):
            return function(*args, **options).fill_(-1)
        return function(*args, **options)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


def _now(function: Any, *args: Any, **options: Any) -> None:
    with torch._C.DisableTorchFunction():
        function(*args, **options)


@contextmanager
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu()
    monkeypatch.setattr(
        Tensor, "record_stream", lambda tensor, stream: gpu.held.append((tensor, stream))
    )
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", gpu.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: gpu.current)
    with gpu:
        yield gpu
