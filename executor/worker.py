"""A device worker: one thread that runs the tasks it holds, one unit at a time. Sampling requests alternate by whole evaluations.

Weights are patched in place, so a task runs only with its own weight set resident; the order of tasks is a scheduling decision.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Protocol

import torch

from katz_graph.errors import Cancelled

PATIENCE = 4  # evaluations that a request waits for others with the resident weight set before it gets its turn


WeightSet = tuple[Hashable, Hashable]
"""A module and the set of LoRAs that is wanted in it; nothing is the empty tuple."""


class Task(Protocol):
    """Something a worker does in units."""

    @property
    def weight_set(self) -> WeightSet | None:
        """What must be resident; None when it does not matter."""

    @property
    def result(self) -> Any: ...

    def step(self) -> bool:
        """Do one unit; True when that was the last."""


class Single:
    """A task of one unit: a VAE call, say."""

    weight_set = None

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run
        self.result: Any = None
        self.start = self.seconds = 0.0  # on the clock of time.perf_counter

    def step(self) -> bool:
        self.start = time.perf_counter()
        self.result = self._run()
        self.seconds = time.perf_counter() - self.start
        return True


class Job:
    """A submitted task, to wait for or to cancel."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.waited = 0
        self.future: Future[Any] = Future()
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop before the next unit."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def result(self) -> Any:
        """The task's result, or its error; Cancelled when it was cancelled. An interrupt while waiting cancels it."""
        try:
            return self.future.result()
        except BaseException:
            self.cancel()
            raise


class Worker:
    """Runs jobs until closed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._resident: dict[Hashable, Hashable] = {}  # by module, the set that the last task left in it
        self._thread = threading.Thread(target=self._loop, name=f"katz-{name}", daemon=True)
        self._thread.start()

    def submit(self, task: Task) -> Job:
        job = Job(task)
        with self._changed:
            if self._closing:
                raise RuntimeError(f"worker {self.name} is closed")
            self._jobs.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Cancel what is left and wait for the unit that runs."""
        with self._changed:
            self._closing = True
            for job in self._jobs:
                job.cancel()
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        with torch.inference_mode():
            while True:
                with self._changed:
                    while not self._jobs and not self._closing:
                        self._changed.wait()
                    if not self._jobs:
                        return
                    job = self._next()
                self._advance(job)

    def _next(self) -> Job:
        """The first job in turn that needs no patching, unless another has waited long enough."""
        self._jobs.rotate(-1)
        ready = (job for job in self._jobs if self._is_resident(job.task.weight_set))
        patient = (job for job in self._jobs if job.waited >= PATIENCE)
        chosen = next(patient, None) or next(ready, None) or self._jobs[0]
        for job in self._jobs:
            job.waited = 0 if job is chosen else job.waited + 1
        return chosen

    def _is_resident(self, wanted: WeightSet | None) -> bool:
        return wanted is None or self._resident.get(wanted[0], ()) == wanted[1]

    def _advance(self, job: Job) -> None:
        try:
            if job.cancelled:
                raise Cancelled("cancelled")
            done = job.task.step()
            if job.task.weight_set is not None:
                module, loras = job.task.weight_set
                self._resident[module] = loras
        except BaseException as error:
            self._finish(job)
            job.future.set_exception(error)
            return
        if done:
            self._finish(job)
            job.future.set_result(job.task.result)

    def _finish(self, job: Job) -> None:
        with self._changed:
            self._jobs.remove(job)
