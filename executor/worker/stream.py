"""Reads what a device has computed, and when: the host enqueues work, and waits for it here only.

A processor has done its work when the call returns; a GPU does it later, in order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from katz_graph.executor.worker.batching import tensors_of

Made = TypeVar("Made")

Reading = Callable[[], Tensor]
"""Waits until a tensor is on the host, and returns it."""


class Moment(Protocol):
    """Marks a place in a device's queue of work."""

    @property
    def known(self) -> bool:
        """Returns whether the device has come there."""

    @property
    def at(self) -> float:
        """Waits until the device has come there; returns when, on the clock of
        `time.perf_counter`.
        """


Clock = Callable[[], Moment]
"""Marks the end of what is enqueued now."""


class Lap(Protocol):
    """Tells how long a device took for what was enqueued between two places in its queue, once it
    is `known`.
    """

    @property
    def known(self) -> bool: ...

    @property
    def seconds(self) -> float: ...


class Stream(Protocol):
    """Presents a device's queue of work."""

    @property
    def ahead(self) -> int:
        """Returns how many evaluations of a request may be enqueued behind one that has not
        ended.
        """

    def entered(self) -> AbstractContextManager[object]:
        """Has a thread enqueue its work here inside of the `with` statement."""

    def read(self, tensor: Tensor) -> Reading:
        """Begins to copy a tensor to the host, behind what is enqueued; nobody may write into it
        any more.
        """

    def hold(self, value: object) -> None:
        """Keeps what enqueued work reads, memory of the host too, until the device has done it."""

    def let_go(self) -> None:
        """Lets go of what is held for work that the device has done."""

    def drain(self) -> None:
        """Waits until the device has done the work that reads what is held, and lets go of it."""

    def beside(self, aside: Callable[[], Made], here: Callable[[], Made]) -> tuple[Made, Made]:
        """Enqueues two pieces of work that may run at once, `aside` on a second stream. Both begin
        behind what is enqueued now, and what is enqueued afterwards begins behind both. What
        `aside` reads must be kept until this returns.
        """

    def timing(self) -> Callable[[], Lap]:
        """Begins a lap; returns what ends it."""

    def clock(self) -> Clock:
        """Makes a clock; the host may wait for the device once."""


class HostStream:
    """Presents a processor: what was computed is there."""

    ahead = 0

    def entered(self) -> AbstractContextManager[object]:
        return nullcontext()

    def read(self, tensor: Tensor) -> Reading:
        return lambda: tensor

    def hold(self, value: object) -> None:
        """Does nothing: what was computed is there."""

    def let_go(self) -> None:
        """Does nothing: it holds nothing."""

    def drain(self) -> None:
        """Does nothing: it holds nothing."""

    def beside(self, aside: Callable[[], Made], here: Callable[[], Made]) -> tuple[Made, Made]:
        return aside(), here()

    def timing(self) -> Callable[[], Lap]:
        began = time.perf_counter()
        return lambda: HostLap(time.perf_counter() - began)

    def clock(self) -> Clock:
        return lambda: HostMoment(time.perf_counter())


@dataclass(frozen=True, slots=True)
class HostMoment:
    """Is where a processor is."""

    at: float
    known: bool = True


@dataclass(frozen=True, slots=True)
class HostLap:
    """Is what a processor took."""

    seconds: float
    known: bool = True


class CudaStream:
    """Presents a GPU by streams of its own: on one it computes, on another it copies to the host
    meanwhile, and on a third it may compute beside the first. While the host waits for an
    evaluation the next one is enqueued, so that the GPU never does. Nothing is asked of the GPU
    before one of them is used.
    """

    ahead = 1

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: deque[tuple[torch.cuda.Event, object]] = deque()

    @cached_property
    def _computing(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @cached_property
    def _copying(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @cached_property
    def _aside(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def entered(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._computing)

    def read(self, tensor: Tensor) -> Reading:
        landing = torch.empty_like(tensor, device="cpu", pin_memory=True)
        landed = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._copying.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copying):
            landing.copy_(tensor, non_blocking=True)
            landed.record(self._copying)
        tensor.record_stream(self._copying)  # its memory is not given away before that

        def wait() -> Tensor:
            landed.synchronize()
            return landing

        return wait

    def hold(self, value: object) -> None:
        behind = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        behind.record(torch.cuda.current_stream(self._device))
        self._held.append((behind, value))
        self.let_go()

    def let_go(self) -> None:
        while self._held and self._held[0][0].query():  # type: ignore[no-untyped-call]
            self._held.popleft()

    def drain(self) -> None:
        try:
            if self._held:  # the last of them stands behind all others
                self._held[-1][0].synchronize()
        finally:
            self._held.clear()

    def beside(self, aside: Callable[[], Made], here: Callable[[], Made]) -> tuple[Made, Made]:
        current = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(current)
        try:
            with torch.cuda.stream(self._aside):
                made = aside()
            for tensor in tensors_of(made):  # whose memory is the second stream's
                tensor.record_stream(current)
            return made, here()
        finally:
            current.wait_stream(self._aside)

    def timing(self) -> Callable[[], Lap]:
        began = _event()
        return lambda: CudaLap(began, _event())

    def clock(self) -> Clock:
        origin = _event()
        origin.synchronize()
        began = time.perf_counter()
        return lambda: CudaMoment(_event(), origin, began)


@dataclass(frozen=True, slots=True)
class CudaMoment:
    """Is told by the GPU, from an `origin` on at which the host's clock was read."""

    event: torch.cuda.Event
    origin: torch.cuda.Event
    began: float

    @property
    def known(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    @property
    def at(self) -> float:
        self.event.synchronize()
        return self.began + float(self.origin.elapsed_time(self.event)) / 1e3


@dataclass(frozen=True, slots=True)
class CudaLap:
    """Is told by the GPU."""

    began: torch.cuda.Event
    ended: torch.cuda.Event

    @property
    def known(self) -> bool:
        return bool(self.ended.query())  # type: ignore[no-untyped-call]

    @property
    def seconds(self) -> float:
        return float(self.began.elapsed_time(self.ended)) / 1e3


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
    event.record()  # on the current stream of the thread that enqueues
    return event


def stream_of(device: torch.device) -> Stream:
    return CudaStream(device) if device.type == "cuda" else HostStream()
