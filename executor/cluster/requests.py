"""Tracks the state of a request on the workers: devices, attempts and results.

Plain bookkeeping for `driver`; sends no messages.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from katz_graph.core.errors import RunError
from katz_graph.core.events import Event
from katz_graph.executor.messages import Done, Timing
from katz_graph.ir.program import Program
from katz_graph.node.types import Context

TRIES = 2  # attempts at a request before it fails


class WorkerLost(RunError):
    """Reports that a worker ended or stopped answering while it ran part of a request or call.
    `bystander`: another request caused the loss, so the attempt does not count.
    """

    def __init__(
        self, message: str, devices: tuple[str, ...] = (), bystander: bool = False
    ) -> None:
        super().__init__(message, devices)
        self.bystander = bystander


class NotSerializable(RunError):
    """Reports that part of a request cannot be serialized."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds the result of a request: two unscaled latents [B, C, h, w], the final one and the
    denoised one of the last step; timings by device.
    """

    samples: Tensor
    denoised: Tensor
    timings: Mapping[str, Timing]
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class CallResult:
    """Holds the result of one service call on a worker: its value, its start on the clock of
    `time.perf_counter`, and its duration in seconds.
    """

    value: Any
    start: float
    seconds: float


@dataclass(slots=True)
class ServiceCall:
    """Tracks one service call on a worker. `progress`: how much is done; None at the end."""

    device: str
    future: Future[CallResult] = field(default_factory=Future)
    progress: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        progress = self.progress  # without a cycle: this -> future -> callback -> this
        self.future.add_done_callback(lambda _: progress.put(None))


@dataclass(slots=True)
class WorkerRequest:
    """Tracks one program while workers run it. Guarded by the lock of the `Cluster`."""

    name: str
    program: Program
    context: Context
    measure: bool = False
    attempt: int = 0
    # attempts that count toward TRIES: this attempt and faults of earlier ones, but neither lack of
    # memory nor faults of other requests
    tries: int = 1
    waiting: bool = False  # for all workers to be present, or for memory
    ready: set[str] = field(default_factory=set)
    timings: dict[str, Timing] = field(default_factory=dict)
    latents: tuple[Tensor, Tensor] | None = None
    future: Future[Outcome] = field(default_factory=Future)
    # None: the request has ended or is cancelled
    events: queue.SimpleQueue[Event | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.future.add_done_callback(lambda _: self.events.put(None))

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.program.instructions)

    def again(self) -> None:
        """Discards the results of this attempt and starts the next."""
        self.attempt += 1
        self.waiting = False
        self.ready.clear()
        self.timings.clear()
        self.latents = None

    def is_current(self, attempt: int) -> bool:
        return attempt == self.attempt and not self.waiting and not self.future.done()

    def finished(self, device: str, done: Done) -> bool:
        """Records the result of one device. Returns True if it was the last."""
        self.timings[device] = done.timing
        self.latents = done.latents or self.latents
        return set(self.timings) == set(self.devices)

    def outcome(self) -> Outcome:
        # the device that samples has finished
        assert self.latents is not None
        return Outcome(*self.latents, dict(self.timings), self.attempt + 1)
