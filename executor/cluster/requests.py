"""Keeps the state of a request that workers carry out: its devices, its attempt, and what came
back.

Plain bookkeeping for `driver`; sends nothing itself.
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
from katz_graph.executor.messages import Done
from katz_graph.executor.worker.timing import Timing
from katz_graph.ir.program import Program
from katz_graph.node.types import Context

TRIES = 2  # attempts at a request before it fails


class WorkerLost(RunError):
    """Reports that a worker ended, or did not answer, while it had a part in something.
    `bystander`: another request caused the loss, so that it does not count as a try.
    """

    def __init__(
        self, message: str, devices: tuple[str, ...] = (), bystander: bool = False
    ) -> None:
        super().__init__(message, devices)
        self.bystander = bystander


class NotSerializable(RunError):
    """Reports that something of a request cannot leave this process."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds the result of a request: two latents [B, C, h, w], unscaled: the
    result, and what the last step took for the denoised latent; times by device.
    """

    samples: Tensor
    denoised: Tensor
    timings: Mapping[str, Timing]
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class CallResult:
    """Holds the result of one unit on a worker, its start on the clock of `time.perf_counter`, and
    its seconds.
    """

    value: Any
    start: float
    seconds: float


@dataclass(slots=True)
class WorkerRequest:
    """Tracks a program on its way through the workers. Guarded by its keeper's lock."""

    name: str
    program: Program
    context: Context
    measure: bool = False
    attempt: int = 0
    # attempts that ended with a fault, and this one; not those without room, nor those that another
    # request's fault ended
    tries: int = 1
    waiting: bool = False  # for a worker to be replaced
    ready: set[str] = field(default_factory=set)
    timings: dict[str, Timing] = field(default_factory=dict)
    latents: tuple[Tensor, Tensor] | None = None
    future: Future[Outcome] = field(default_factory=Future)
    # None: look at the future
    events: queue.SimpleQueue[Event | None] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.future.add_done_callback(lambda _: self.events.put(None))

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.program.instructions)

    def again(self) -> None:
        """Forgets what an attempt brought, and begins the next."""
        self.attempt += 1
        self.waiting = False
        self.ready.clear()
        self.timings.clear()
        self.latents = None

    def is_current(self, attempt: int) -> bool:
        return attempt == self.attempt and not self.waiting and not self.future.done()

    def finished(self, device: str, done: Done) -> bool:
        """Records a part that is done; True when it was the last."""
        self.timings[device] = done.timing
        self.latents = done.latents or self.latents
        return set(self.timings) == set(self.devices)

    def outcome(self) -> Outcome:
        # the device that has the sampler is among those that are done
        assert self.latents is not None
        return Outcome(*self.latents, dict(self.timings), self.attempt + 1)
