"""Runs an engine on one device in this process: nothing to start, and functions of packs can be
reached. Not for servers: a device fault ends the process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from katz_graph.context import Context
from katz_graph.executor.engine import Called, Choices, DeviceEngine, Outcome
from katz_graph.executor.measure.stages import StageTime, profile_region
from katz_graph.executor.measure.store import CostStore
from katz_graph.executor.measure.survey import survey
from katz_graph.executor.worker.cancellation import cancellation, unless
from katz_graph.executor.worker.device_program import device_program
from katz_graph.executor.worker.execution import Execution
from katz_graph.executor.worker.loop import DeviceJob, Single, Worker
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.services import SERVICES
from katz_graph.ir.device import Device, NetworkLink
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.costs.counts import Counts
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.store import ModelStore


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Configures a local engine. `batching` None lets the planner choose; `cache` keeps measured
    rates; `threads` of torch, None: as many as where it is made.
    """

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    batching: bool | None = None
    cache: Path | None = None
    name: str = ""  # that people call it by, where it is another one
    threads: int | None = None
    model_bytes: int | None = None  # that models may take; None: what is free, less what computing needs


class LocalWorkers:
    """Runs programs and calls on a worker thread with its models. `devices` is for the planner;
    whoever measures it fills that in.
    """

    def __init__(self, name: str, models: DeviceModels, threads: int) -> None:
        self.devices: tuple[Device, ...] = ()
        self.links: Mapping[tuple[str, str], NetworkLink] = {}
        self.models = models
        self._worker = Worker(name, threads)

    def submit(self, program: Program, context: Context, measure: bool = False) -> DeviceJob:
        """Starts sampling; the job's result is the latent [B, C, h, w], unscaled, and the denoised
        one that the last step began with.
        """
        return self._worker.submit(self._execution(program, context, measure))

    def run(self, program: Program, context: Context, measure: bool = False) -> Outcome:
        execution = self._execution(program, context, measure)
        samples, denoised = self._result(self._worker.submit(execution), context)
        return Outcome(samples, denoised, {self.devices[0].name: execution.timing})

    def _execution(self, program: Program, context: Context, measure: bool) -> Execution:
        return Execution(device_program(program, self.devices[0].name), self.models, context, measure=measure)

    def call(self, device: str, what: str, *arguments: Any, context: Context | None = None) -> Called:
        task = Single(lambda: SERVICES[what](self, *arguments))
        value = self._result(self._worker.submit(task), context)
        return Called(value, task.start, task.seconds)

    def _result(self, job: DeviceJob, context: Context | None) -> Any:
        try:
            with cancellation(context) as cancelled:
                return unless(cancelled, job.future)
        except BaseException:
            job.cancel()
            raise
        finally:
            del job  # the error's traceback keeps this frame, and the job's future the error

    def close(self) -> None:
        self._worker.close()


class LocalEngine(DeviceEngine):
    """Runs programs on one device of this process."""

    def __init__(self, options: EngineOptions | None = None, models: DeviceModels | None = None, choices: Choices | None = None) -> None:
        self.options = options or EngineOptions()
        self._name = self.options.name or self.options.device
        self.models = models or _models(self.options)
        self._store = CostStore(self.options.cache)
        self._local = LocalWorkers(self._name, self.models, self.options.threads or torch.get_num_threads())
        super().__init__(self._local, choices or Choices(batching=self.options.batching), Counts(self._store))
        try:
            self.measure()
        except BaseException:
            self.close()
            raise

    def measure(self, again: bool = False) -> None:
        """Learns the rates of the device, from the store or by measuring."""
        self._places = survey([self._name], lambda *asked: self._local.call(*asked).value, self._store, again)
        self._learn()

    def _learn(self) -> None:
        """Tells the planner what the store knows. There is no other device, so nothing is won by
        counting this one's memory.
        """
        self._local.devices = tuple(replace(place.device(self._store), memory_bytes=math.inf) for place in self._places)

    def _note(self, device: str, samples: Mapping[tuple[str, int], Sequence[float]]) -> None:
        self._store.record(next(place.key for place in self._places if place.name == device), samples)
        self._learn()

    def profile(self, region: Region, context: Context) -> list[StageTime]:
        """Measures every stage of a region. Later plans use the times."""
        measured = profile_region(region, self._local, self._places, self._store, context)
        self._learn()
        return measured

    def submit(self, program: Program, context: Context) -> DeviceJob:
        """Starts sampling without waiting; as `LocalWorkers.submit`."""
        return self._local.submit(program, context)


def _models(options: EngineOptions) -> DeviceModels:
    store = ModelStore(model_bytes=options.model_bytes, memory=DeviceMemory(options.device))
    return DeviceModels(options.device, options.dtype, store)
