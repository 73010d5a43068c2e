"""Simulates the streams of a GPU. Enqueued work runs as late as possible: when the host or another
stream waits for it.

Enqueues copies and fills of tensors by itself; tests enqueue all other work. Only tensors passed to
`Gpu.has` are on the GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
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

    def wait_event(self, event: Event) -> None:
        self.enqueue(lambda: event._stream.run(event._until))

    def run(self, until: int) -> None:
        """Runs queued work in order until `until` items have run since the start."""
        while self.done < until:
            work, self._work[self.done] = self._work[self.done], int  # releases its tensors
            self.done += 1
            with torch._C.DisableTorchFunction():
                work()


class Event:
    waits = 0  # number of host waits on any event

    def __init__(self, **options: Any) -> None:
        self._stream, self._until = DEFAULT, 0

    def record(self, stream: Stream) -> None:
        self._stream, self._until = stream, stream.enqueued

    def query(self) -> bool:
        return self._stream.done >= self._until

    def synchronize(self) -> None:
        Event.waits += 1
        self._stream.run(self._until)


DEFAULT = Stream()
DEVICE = torch.device("cuda:0")


class Gpu(TorchFunctionMode):
    """Enqueues copies on the current stream. `held`: tensors passed to `record_stream`, each with
    its stream.
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = DEFAULT
        self._there: set[int] = set()
        self._pinned: set[int] = set()
        self.held: list[tuple[Tensor, Stream]] = []
        self.streams = [DEFAULT]

    def made(self, device: Any) -> Stream:
        self.streams.append(Stream(device))
        return self.streams[-1]

    def run(self, chance: random.Random) -> None:
        """Runs all enqueued work, choosing streams at random."""
        while left := [one for one in self.streams if one.done < one.enqueued]:
            drawn = chance.choice(left)
            drawn.run(drawn.done + 1)

    def has(self, tensor: Tensor) -> Tensor:
        """Marks the memory of a tensor as the GPU's."""
        self._there.add(_memory(tensor))
        return tensor

    def pinned(self, tensor: Tensor) -> Tensor:
        """Marks the memory of a tensor as pinned."""
        self._pinned.add(_memory(tensor))
        return tensor

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = dict(kwargs or {})
        if function in SIMULATED_ATTRIBUTES and _now(_memory, args[0]) in self._there:
            return SIMULATED_ATTRIBUTES[function]
        if function in (Tensor.copy_, Tensor.fill_):
            self.current.enqueue(partial(function, *args, **options))
            return args[0]
        if function is torch.clone:
            made = torch.empty_like(args[0]).fill_(torch.nan)
            self.current.enqueue(partial(Tensor.copy_, made, args[0]))
            return made
        if function is torch.empty and options.get("device") == DEVICE:
            return self.has(_now(function, *args, **(options | {"device": "cpu"})).fill_(torch.nan))
        if function is Tensor.pin_memory:
            return _now(self.pinned, torch.clone(args[0]))
        if function is Tensor.is_pinned:
            return _now(_memory, args[0]) in self._pinned
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


SIMULATED_ATTRIBUTES = {Tensor.is_cuda.__get__: True, Tensor.device.__get__: DEVICE}  # type: ignore[attr-defined]


def _now(function: Any, *args: Any, **options: Any) -> Any:
    with torch._C.DisableTorchFunction():
        return function(*args, **options)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    gpu = Gpu()
    monkeypatch.setattr(
        Tensor, "record_stream", lambda tensor, stream: gpu.held.append((tensor, stream))
    )
    monkeypatch.setattr(torch.cuda, "Stream", gpu.made)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", gpu.stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: gpu.current)
    with gpu:
        yield gpu
