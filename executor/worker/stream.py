"""Wraps a device's queue of work. The host enqueues work without waiting. It waits only in this
module, to read results and times.

A CPU has completed its work when the call returns. A GPU completes it later, in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from katz_graph.executor.calls.batching import tensors_of

Made = TypeVar("Made")

Reading = Callable[[], Tensor]
"""Waits until a tensor is on the host, and returns it."""


Uploaded = Callable[[], Tensor]
"""Makes work enqueued later wait until a copy to the device is complete, and returns the copy."""


class StreamEvent(Protocol):
    """Marks a position in a device's queue, like a CUDA event."""

    @property
    def known(self) -> bool:
        """Returns whether the device has reached the event."""

    @property
    def at(self) -> float:
        """Waits for the event; returns its time on the clock of `time.perf_counter`."""


Clock = Callable[[], StreamEvent]
"""Records an event after all work enqueued so far."""


class Lap(Protocol):
    """Measures a device's time for the work enqueued between two events; valid once `known`."""

    @property
    def known(self) -> bool: ...

    @property
    def seconds(self) -> float: ...


class Stream(Protocol):
    """Represents a device's queue of work."""

    @property
    def ahead(self) -> int:
        """Returns how many evaluations of a request may be enqueued behind an uncompleted one."""

    def entered(self) -> AbstractContextManager[object]:
        """Makes this the current stream of the thread inside the `with` statement."""

    def read(self, tensor: Tensor) -> Reading:
        """Starts copying a tensor to the host, after the enqueued work. Later work must not write
        to the tensor.
        """

    def upload(self, parts: Sequence[Tensor]) -> Uploaded:
        """Starts copying host tensors [B, ...] to the device, concatenated along the batch, while
        enqueued work runs: directly from pinned memory, else through pinned memory. May be called
        in any thread.
        """

    def hold(self, value: object) -> None:
        """Keeps the inputs of enqueued work alive, host memory included, until the device has
        completed the work.
        """

    def release(self) -> None:
        """Releases held values whose work has completed."""

    def drain(self) -> None:
        """Waits for all work that reads held values, and releases them."""

    def concurrently(
        self, aside: Callable[[], Made], here: Callable[[], Made]
    ) -> tuple[Made, Made]:
        """Enqueues two pieces of work that may run concurrently, `aside` on a second stream. Both
        start after the work enqueued so far; work enqueued later starts after both. The caller must
        keep the inputs of `aside` alive until this returns.
        """

    def timing(self) -> Callable[[], Lap]:
        """Starts a lap; returns the function that ends it."""

    def clock(self) -> Clock:
        """Creates a clock; the host may wait for the device once."""


class HostStream:
    """Implements `Stream` for a CPU: results are complete when a call returns."""

    ahead = 0

    def entered(self) -> AbstractContextManager[object]:
        return nullcontext()

    def read(self, tensor: Tensor) -> Reading:
        return lambda: tensor

    def upload(self, parts: Sequence[Tensor]) -> Uploaded:
        whole = torch.cat(list(parts))  # copies even a single part, which may be mapped from a file
        return lambda: whole

    def hold(self, value: object) -> None:
        """Does nothing: all work is complete."""

    def release(self) -> None:
        """Does nothing: no values are held."""

    def drain(self) -> None:
        """Does nothing: no values are held."""

    def concurrently(
        self, aside: Callable[[], Made], here: Callable[[], Made]
    ) -> tuple[Made, Made]:
        return aside(), here()

    def timing(self) -> Callable[[], Lap]:
        began = time.perf_counter()
        return lambda: HostLap(time.perf_counter() - began)

    def clock(self) -> Clock:
        return lambda: HostEvent(time.perf_counter())


@dataclass(frozen=True, slots=True)
class HostEvent:
    """A CPU event: complete when it is recorded."""

    at: float
    known: bool = True


@dataclass(frozen=True, slots=True)
class HostLap:
    """A CPU time span: complete when it is recorded."""

    seconds: float
    known: bool = True


class CudaStream:
    """Implements `Stream` for a GPU by four streams: one computes, one copies to the host, one to
    the device, and one computes concurrently with the first. The host enqueues the next evaluation
    before it waits for the current one, so the GPU never idles. Streams are created on first use,
    so the constructor does not touch the GPU.
    """

    ahead = 1

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: deque[tuple[torch.cuda.Event, object]] = deque()
        # of uploads in any thread: host memory that others may have registered, and may unmap
        self._sources: deque[tuple[torch.cuda.Event, object]] = deque()
        self._lock = threading.Lock()

    @cached_property
    def _computing(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @cached_property
    def _copying(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @cached_property
    def _uploading(self) -> torch.cuda.Stream:
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
        tensor.record_stream(self._copying)  # its memory is not reused before the copy

        def wait() -> Tensor:
            landed.synchronize()
            return landing

        return wait

    def upload(self, parts: Sequence[Tensor]) -> Uploaded:
        # a copy from other memory would make the host wait for the device
        sources = [part if part.is_pinned() else part.pin_memory() for part in parts]
        sizes = [len(part) for part in parts]
        uploaded = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._uploading):
            shape = sum(sizes), *parts[0].shape[1:]
            there = torch.empty(shape, dtype=parts[0].dtype, device=self._device)
            for target, source in zip(torch.split(there, sizes), sources, strict=True):
                target.copy_(source, non_blocking=True)
            uploaded.record(self._uploading)
        with self._lock:
            self._sources.append((uploaded, sources))
        self._release_sources()

        def wait() -> Tensor:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(uploaded)
            there.record_stream(current)  # its memory is not reused before the work that reads it
            return there

        return wait

    def hold(self, value: object) -> None:
        behind = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        behind.record(torch.cuda.current_stream(self._device))
        self._held.append((behind, value))
        self.release()

    def release(self) -> None:
        while self._held and self._held[0][0].query():  # type: ignore[no-untyped-call]
            self._held.popleft()
        self._release_sources()

    def _release_sources(self) -> None:
        with self._lock:
            while self._sources and self._sources[0][0].query():  # type: ignore[no-untyped-call]
                self._sources.popleft()

    def drain(self) -> None:
        try:
            if self._held:  # the last event completes last
                self._held[-1][0].synchronize()
        finally:
            self._held.clear()
            self._release_sources()

    def concurrently(
        self, aside: Callable[[], Made], here: Callable[[], Made]
    ) -> tuple[Made, Made]:
        current = torch.cuda.current_stream(self._device)
        self._aside.wait_stream(current)
        try:
            with torch.cuda.stream(self._aside):
                made = aside()
            for tensor in tensors_of(made):  # allocated on the second stream
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
        return lambda: CudaEvent(_event(), origin, began)


@dataclass(frozen=True, slots=True)
class CudaEvent:
    """CUDA event, timed relative to the event `origin`, which completed at host time `began`."""

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
    """Time between two CUDA events."""

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
    event.record()  # on the current stream of the enqueuing thread
    return event


def stream_of(device: torch.device) -> Stream:
    return CudaStream(device) if device.type == "cuda" else HostStream()
