"""Injects faults: sends signals to workers during requests, for `katz bench faults` and tests of
fault handling.
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
SPARE_TIMEOUT = 120.0  # seconds, for the next spare worker to start
LINK = NetworkLink(1e9, 1e-4)  # any value would do, because plans are pinned
FORGIVING = WorkerPatience(deaths=1000, max_failed_starts=1000)
GUIDANCE = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """Describes a fault: a signal to a device's worker once a request has completed `evaluation`
    evaluations.
    """

    signal: signal.Signals
    device: str
    evaluation: int


@dataclass(slots=True)
class FaultyRun:
    """Runs a request and injects faults into its workers: one per attempt, until none remain. The
    workers must run on this host. Times are on the clock of `time.monotonic`.
    """

    engine: DeviceEngine
    faults: Sequence[Fault]
    hit: list[float] = field(default_factory=list)
    """Times of the signals."""
    noticed: list[float] = field(default_factory=list)
    """Times of the warnings that the request restarts."""
    recovered: list[float] = field(default_factory=list)
    """Times of the first completed evaluation after each restart."""
    pids: dict[str, int] = field(default_factory=dict)

    def run(self, program: Program) -> Outcome:
        for fault in self.faults:
            self.pids[fault.device] = self.engine.cluster.call(fault.device, "identity").value[
                "pid"
            ]
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
            attempt == len(self.hit) < len(self.faults)
            and event.value >= self.faults[attempt].evaluation
        ):
            fault = self.faults[attempt]
            self.hit.append(time.monotonic())
            os.kill(self.pids[fault.device], fault.signal)


@dataclass(frozen=True, slots=True)
class FaultTiming:
    """Holds the result of one fault."""

    signal: str
    device: str
    noticed: float  # seconds from the signal to its detection
    recovered: float  # seconds from the signal to the first evaluation of the new attempt
    attempts: int
    difference: float  # of the latent from an undisturbed run


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """Summarizes the requests that another worker ran at the same time."""

    number: int
    attempts: int
    difference: float


def wait_for_spare(engine: DeviceEngine) -> None:
    """Waits until a spare worker is ready. Raises RunError on timeout."""
    deadline = time.monotonic() + SPARE_TIMEOUT
    while "spare 0" not in engine.cluster.pids():
        if time.monotonic() > deadline:
            raise RunError(f"no spare worker was ready within {SPARE_TIMEOUT:g} s")
        time.sleep(0.05)


@contextmanager
def bystander(engine: DeviceEngine, program: Program) -> Iterator[list[Outcome]]:
    """Runs a program repeatedly, concurrently with the `with` block; yields the growing list of
    outcomes.
    """
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


def inject_faults(
    engine: DeviceEngine, folder: Path, scale: Scale, repeats: int, seed: int
) -> tuple[list[FaultTiming], Undisturbed | None]:
    """Sends each signal `repeats` times to each of the first two devices, once per request, after a
    random evaluation in the request's first half.

    A third device, if present, runs separate requests at the same time.
    """
    base, control, *others = engine.cluster.assignments
    models = Models.make(folder, scale)
    region = models.request(scale, GUIDANCE)
    other = models.request(scale, GUIDANCE, controls=0, seed=8)
    program, expected = plan(engine, region, pins(base, control), batching=False), reference(region)
    draw = random.Random(seed)

    def one(sent: signal.Signals, device: str) -> FaultTiming:
        wait_for_spare(engine)
        faulty_run = FaultyRun(engine, [Fault(sent, device, draw.randint(1, scale.steps // 2))])
        outcome = faulty_run.run(program)
        (hit,), (noticed,), (recovered,) = faulty_run.hit, faulty_run.noticed, faulty_run.recovered
        return FaultTiming(
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
    concurrent = plan(engine, other, pins(others[0], others[0]), batching=False)
    picture = reference(other)
    with bystander(engine, concurrent) as outcomes:
        timings = [one(*kind) for kind in kinds]
    apart = max(difference(outcome.samples, picture) for outcome in outcomes)
    return timings, Undisturbed(len(outcomes), max(outcome.attempts for outcome in outcomes), apart)
