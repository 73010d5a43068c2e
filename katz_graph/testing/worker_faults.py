"""Injects faults: sends signals to workers in the middle of requests, for `katz bench faults` and
the tests of faults.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from katz_graph.core.errors import RunError
from katz_graph.core.events import Event, Progress, Warned
from katz_graph.executor.cluster.requests import Outcome
from katz_graph.executor.cluster.worker_handle import WorkerPatience
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.ir.device import NetworkLink
from katz_graph.ir.program import Program
from katz_graph.testing.model_files import difference
from katz_graph.testing.placement import Models, Scale, pins, plan, reference
from katz_graph.testing.requests import bare_context

SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
SPARE_TIMEOUT = 120.0  # seconds for the next spare to be loaded
LINK = NetworkLink(1e9, 1e-4)  # plans are pinned: nothing depends on it
FORGIVING = WorkerPatience(deaths=1000, max_failed_starts=1000)
GUIDANCE = 5.0


@dataclass(frozen=True, slots=True)
class Blow:
    """A signal to a device's worker when its request has done so many evaluations."""

    signal: signal.Signals
    device: str
    evaluation: int


@dataclass(slots=True)
class Struck:
    """Runs a request whose workers, on this host, are struck: one blow in each attempt, while there
    are any left.

    Times on the clock of `time.monotonic`: of the blows, of the notes that it begins again, of the
    first evaluation done after each.
    """

    engine: DeviceEngine
    blows: Sequence[Blow]
    hit: list[float] = field(default_factory=list)
    noticed: list[float] = field(default_factory=list)
    recovered: list[float] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)

    def run(self, program: Program) -> Outcome:
        for blow in self.blows:
            self.pids[blow.device] = self.engine.cluster.call(blow.device, "identity").value["pid"]
        return self.engine.cluster.run(program, self._context())

    def _context(self) -> RunContext:
        context = bare_context(self.engine)
        context.listener = self._listen
        return context

    def _listen(self, event: Event) -> None:
        if isinstance(event, Warned):
            self.noticed.append(time.monotonic())
        if not isinstance(event, Progress):
            return
        attempt = len(self.noticed)
        if attempt > len(self.recovered):
            self.recovered.append(time.monotonic())
        if (
            attempt == len(self.hit) < len(self.blows)
            and event.value >= self.blows[attempt].evaluation
        ):
            blow = self.blows[attempt]
            self.hit.append(time.monotonic())
            os.kill(self.pids[blow.device], blow.signal)


@dataclass(frozen=True, slots=True)
class Strike:
    """The result of one blow: seconds until it was noticed and until the request was on its way
    again, and its picture's difference.
    """

    signal: str
    device: str
    noticed: float
    recovered: float
    attempts: int
    difference: float


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Requests on another worker meanwhile."""

    number: int
    attempts: int
    difference: float


def wait_for_spare(engine: DeviceEngine) -> None:
    """Waits until a worker waits to stand in. RunError when none does in time."""
    deadline = time.monotonic() + SPARE_TIMEOUT
    while "spare 0" not in engine.cluster.pids():
        if time.monotonic() > deadline:
            raise RunError(f"no spare worker was ready within {SPARE_TIMEOUT:g} s")
        time.sleep(0.05)


@contextmanager
def bystander(engine: DeviceEngine, program: Program) -> Iterator[list[Outcome]]:
    """Runs a program again and again beside what is done in the block; the list fills."""
    ended, outcomes = threading.Event(), list[Outcome]()

    def repeat() -> None:
        while not ended.is_set():
            outcomes.append(engine.cluster.run(program, bare_context(engine)))

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(repeat)
        try:
            yield outcomes
        finally:
            ended.set()
            running.result()


def strike(
    engine: DeviceEngine, folder: Path, scale: Scale, repeats: int, seed: int
) -> tuple[list[Strike], Undisturbed | None]:
    """Strikes each of the first two devices with `repeats` blows of each signal, one request each,
    in random evaluations of its first half.

    Where there is a third device it has requests of its own.
    """
    base, control, *others = engine.cluster.assignments
    models = Models.make(folder, scale)
    region = models.request(scale, GUIDANCE)
    other = models.request(scale, GUIDANCE, controls=0, seed=8)
    program, expected = plan(engine, region, pins(base, control), batching=False), reference(region)
    draw = random.Random(seed)

    def one(sent: signal.Signals, device: str) -> Strike:
        wait_for_spare(engine)
        struck = Struck(engine, [Blow(sent, device, draw.randint(1, scale.steps // 2))])
        outcome = struck.run(program)
        (hit,), (noticed,), (recovered,) = struck.hit, struck.noticed, struck.recovered
        return Strike(
            sent.name,
            device,
            noticed - hit,
            recovered - hit,
            outcome.attempts,
            difference(outcome.samples, expected),
        )

    kinds = [
        (sent, device) for _ in range(repeats) for sent in SIGNALS for device in (base, control)
    ]
    if not others:
        return [one(*kind) for kind in kinds], None
    beside = plan(engine, other, pins(others[0], others[0]), batching=False)
    picture = reference(other)
    with bystander(engine, beside) as outcomes:
        strikes = [one(*kind) for kind in kinds]
    apart = max(difference(outcome.samples, picture) for outcome in outcomes)
    return strikes, Undisturbed(len(outcomes), max(outcome.attempts for outcome in outcomes), apart)
