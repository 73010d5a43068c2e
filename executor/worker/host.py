"""Serves one device inside a worker: its models, its fair queue, messages from other workers, and
its parts of requests.

`worker.main` calls it; it answers by messages. Must not know how the worker was launched.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch

from katz_graph.adapters.recipes import loras_of
from katz_graph.core.errors import KatzError, OutOfMemory, RunError
from katz_graph.core.events import Event
from katz_graph.executor.calls.computing import Computing, Eagerly
from katz_graph.executor.calls.stage_calls import StageCalls
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.measure.links import PROBES
from katz_graph.executor.messages import (
    Advanced,
    Assigned,
    Begin,
    CallService,
    Cancel,
    Connected,
    Disconnected,
    Done,
    Failed,
    Failure,
    Fault,
    FromWorker,
    Go,
    Happened,
    Raised,
    Ready,
    Returned,
    RunEnded,
    RunPlace,
    Unusable,
)
from katz_graph.executor.recorded.cuda import CudaGraphs
from katz_graph.executor.recorded.recorder import Recorder
from katz_graph.executor.templates.store import TemplateStore
from katz_graph.executor.transport.bulk import Bulk
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.mailbox import Address, Mailbox
from katz_graph.executor.transport.peer import Peer
from katz_graph.executor.transport.registration import registering
from katz_graph.executor.turns.affinity import stay_on
from katz_graph.executor.turns.device_order import Place
from katz_graph.executor.turns.loop import DeviceThread, ServiceTask, SubmittedTask
from katz_graph.executor.weights.host_copies import HostCopies, nothing, share_of_host
from katz_graph.executor.weights.prefetch import Prefetcher, order_of_use
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.device_fault import device_fault
from katz_graph.executor.worker.execution import Exchange, Execution
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.services import SERVICES
from katz_graph.executor.worker.stream import Stream
from katz_graph.files.folders import Folders
from katz_graph.host.memory import is_out_of_memory, memory_message, retain_freed_memory
from katz_graph.ir.device import Device
from katz_graph.ir.program import Instance
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.residents import ResidentHooks
from katz_graph.models.loading.store import ModelStore
from katz_graph.node.types import Context, Engine, NodeType
from katz_graph.packs import load_registry
from katz_graph.settings.environment import Settings, allocation_is_ours

Report = Callable[[FromWorker], None]
"""Sends a message to the driver."""

GiveUp = Callable[[Fault], None]
"""Reports a fault to the driver, and ends this worker."""

AWAKE = 1.0  # seconds to keep a processor busy while a request waits
WORK = {**SERVICES, **PROBES}  # the functions that `CallService` can name


class Host:
    """Serves one device until `close`. Reports failures; calls `give_up` if the device is unusable.
    `types`: node types allowed inside step regions.
    """

    def __init__(
        self, config: WorkerConfig, report: Report, types: Mapping[str, NodeType], give_up: GiveUp
    ) -> None:
        self._config, self._report, self._types, self._give_up = config, report, types, give_up
        self.peers: dict[str, Peer] = {}
        self._parts: dict[tuple[str, int], tuple[Execution, SubmittedTask]] = {}
        self._calls: dict[int, SubmittedTask] = {}
        self.models = _models(config)
        if self.models.device.type == "cpu" and allocation_is_ours():
            retain_freed_memory()
        self._prefetcher = Prefetcher(
            self.models.residents.has, on_host=self.models.device.type == "cpu"
        )
        self._stage_calls = StageCalls(self.models, config.shared_rows)
        self._worker = DeviceThread(
            config.name,
            config.threads,
            AWAKE if config.processors else 0.0,
            self.models.stream.entered,
            self._stage_calls if config.shared_rows.most else None,
        )
        stay_on(config.processors)
        self.mailbox = Mailbox(self._worker.wake)
        fault = _fault(torch.device(config.device))
        self._report(Assigned() if fault is None else Unusable(fault))

    @property
    def device(self) -> torch.device:
        return self.models.device

    def close(self) -> None:
        """Stops after the current unit."""
        for _, job in list(self._parts.values()):
            job.cancel()
        for peer in self.peers.values():
            peer.close()
        self._worker.close()

    def connect(self, name: str, generation: int, connection: Connection, bulk: Bulk) -> None:
        """Starts using this connection to another worker, and reports it to the driver."""
        # in a thread, because the peer's threads may end slowly and the caller must answer pings
        if name in self.peers:
            threading.Thread(
                target=self.peers[name].close, name=f"close {name}", daemon=True
            ).start()
        self.peers[name] = Peer(
            name,
            connection,
            self.mailbox,
            bulk,
            lambda _, why: self._announce(Disconnected(name, generation, why)),
        )
        self._announce(Connected(name, generation, bulk.transport))

    def begin(self, begin: Begin) -> None:
        """Starts a device program. If it `waits` for other devices, loads its models, reports
        `Ready`, and waits for `go`.
        """
        try:
            self._begin(begin)
        except Exception as error:
            self._explain_failed(begin, error)

    def _begin(self, begin: Begin) -> None:
        exchange = _RequestExchange(begin.request, begin.attempt, self.mailbox, self.peers)
        ready = partial(self._report, Ready(begin.request, begin.attempt))
        context = begin.context or self._context(begin)
        execution = Execution(
            begin.program,
            self.models,
            context,
            exchange,
            begin.measure,
            hold=begin.waits,
            on_loaded=ready if begin.waits else None,
            wake=self._worker.wake,
            stage_calls=self._stage_calls,
        )
        self.prefetch(execution.models, begin.place.arrival)
        job = self._worker.submit(execution, _place(begin.place))
        self._parts[begin.request, begin.attempt] = execution, job
        job.future.add_done_callback(lambda future: self._ended(begin, execution, future))

    def prefetch(self, recipes: Iterable[Any], arrival: float) -> None:
        """Starts reading the files of models that are not loaded, for a run."""
        for recipe in recipes:
            self._prefetcher.want(self.models.missing([recipe]), arrival, order_of_use(recipe))

    def _context(self, begin: Begin) -> Context:
        """Creates the context for another process's run; forwards its events to that process."""
        settings, folders, types = self._surroundings
        engine = cast(Engine, _NoEngine(begin.program.program.target.device(begin.program.device)))

        def report(event: Event) -> None:
            self._report(Happened(begin.request, begin.attempt, event))

        return RunContext(
            engine,
            folders,
            settings.output,
            {},
            report,
            previews=begin.previews,
            progress_interval=begin.progress_interval,
            types=types,
        )

    @cached_property
    def _surroundings(self) -> tuple[Settings, Folders, Mapping[str, NodeType]]:
        settings = Settings.read(packs=[Path(folder) for folder in self._config.packs])
        return settings, settings.folders(), _Types(self._types, self._config.name, settings)

    def go(self, go: Go) -> None:
        if (part := self._parts.get((go.request, go.attempt))) is not None:
            part[0].go()
            self._worker.wake()

    def cancel(self, cancel: Cancel) -> None:
        """Stops an attempt before its next unit. Discards its values, including later arrivals."""
        if (part := self._parts.get((cancel.request, cancel.attempt))) is not None:
            part[1].cancel()
        self.mailbox.discard(cancel.request, cancel.attempt)

    def call(self, call: CallService) -> None:
        """Runs a service or probe and returns its value to the driver."""
        wanted = self.models.adapters.want(
            (lora.file for given in call.arguments for lora in loras_of(given)), self._worker.wake
        )
        task = ServiceTask(
            lambda: WORK[call.service](self, *call.arguments),
            lambda: wanted.have(wanted.files),
            wanted.release,
            lambda: not self.models.has(call.arguments),
            lambda done: self._report(Advanced(call.id, done)),
        )
        try:
            self._calls[call.id] = job = self._worker.submit(task, _place(call.place))
        except Exception as error:
            task.close()
            return self._explain_raised(call.id, error)
        job.future.add_done_callback(lambda future: self._returned(call.id, task, future))

    def run_ended(self, ended: RunEnded) -> None:
        """Keeps the device free no longer for a run, and reads no more files for it."""
        self._prefetcher.drop(ended.arrival)
        self._worker.run_ended(ended.arrival)

    def drop(self, identifier: int) -> None:
        """Stops a call before its next unit, because no caller awaits it any more."""
        if (job := self._calls.get(identifier)) is not None:
            job.cancel()

    def _returned(self, identifier: int, task: ServiceTask, future: Future[Any]) -> None:
        self._calls.pop(identifier, None)
        error = future.exception()
        if error is None:
            error = self._answer(Returned(identifier, future.result(), task.start, task.seconds))
        if error is not None:
            self._explain_raised(identifier, error)

    def _ended(self, begin: Begin, execution: Execution, future: Future[Any]) -> None:
        self._parts.pop((begin.request, begin.attempt), None)
        self.mailbox.discard(begin.request, begin.attempt)
        error = future.exception()
        if error is None:
            error = self._answer(
                Done(begin.request, begin.attempt, execution.timing, future.result())
            )
        if error is not None:
            self._explain_failed(begin, error)

    def _answer(self, message: FromWorker) -> Exception | None:
        """Sends a result; returns the error if it cannot be sent: an unsupported type, no memory
        for a copy, a lost device.
        """
        try:
            self._report(message)
        except TypeError as unsendable:
            return RunError(f"a result cannot be sent: {unsendable}")
        except Exception as error:
            return error
        return None

    def _explain_failed(self, begin: Begin, error: BaseException) -> None:
        self._explain(
            begin.request, error, lambda failure: Failed(begin.request, begin.attempt, failure)
        )

    def _explain_raised(self, identifier: int, error: BaseException) -> None:
        self._explain(identifier, error, lambda failure: Raised(identifier, failure))

    def _explain(
        self, culprit: str | int, error: BaseException, message: Callable[[Failure], FromWorker]
    ) -> None:
        """Reports a failure. Gives up this worker if the failure is a device fault."""
        if fault := device_fault(error):
            return self._give_up(Fault(f"the device failed: {fault}", culprit))
        self._announce(message(_described(error)), culprit)

    def _announce(self, message: FromWorker, culprit: str | int | None = None) -> None:
        """Sends a message that the driver waits for. Gives up this worker if that fails."""
        try:
            self._report(message)
        except Exception as error:
            what = (
                f"a message ({type(message).__name__}) cannot be sent: "
                f"{type(error).__name__}: {error}"
            )
            self._give_up(Fault(what, culprit))


class _Types(dict[str, NodeType]):
    """Looks up built-in nodes; loads the configured packs when another type is requested."""

    def __init__(self, builtin: Mapping[str, NodeType], worker: str, settings: Settings) -> None:
        super().__init__(builtin)
        self._worker, self._settings = worker, settings

    def __missing__(self, name: str) -> NodeType:
        self |= load_registry(self._settings.packs, self._settings.folders())[0]
        if name not in self:
            raise RunError(f"{self._worker} has no pack with this type of node")
        return self[name]


class _NoEngine:
    """Replaces the engine for nodes inside a step region, because a worker has no engine. Raises
    RunError for every attribute except `device`.
    """

    def __init__(self, device: Device) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        raise RunError(
            f"a node inside a step region asks the engine for {name!r}, which workers do not "
            "have; use one device"
        )


class _RequestExchange(Exchange):
    """Exchanges values with other workers for one attempt at a request."""

    def __init__(
        self, request: str, attempt: int, mailbox: Mailbox, peers: Mapping[str, Peer]
    ) -> None:
        self._request, self._attempt, self._mailbox, self._peers = request, attempt, mailbox, peers

    def _address(self, instance: Instance) -> Address:
        return Address(
            self._request,
            self._attempt,
            instance.ref.operation,
            instance.ref.output,
            instance.evaluation,
        )

    def send(self, peer: str, instance: Instance, value: Any) -> None:
        if peer not in self._peers:
            raise Closed(f"no connection with {peer}")
        self._peers[peer].send(self._address(instance), value)

    def has(self, instance: Instance) -> bool:
        return self._mailbox.has(self._address(instance))

    def take(self, instance: Instance) -> Any:
        return self._mailbox.take(self._address(instance))


def _place(place: RunPlace) -> Place:
    return Place(
        place.arrival, time.perf_counter() + place.due_in, place.client, place.seconds_after
    )


def _models(assignment: WorkerConfig) -> DeviceModels:
    # exact float32: by default torch rounds the inputs of convolutions to TF32 on a GPU
    torch.backends.cudnn.allow_tf32 = False
    memory = DeviceMemory(assignment.device)

    def store(hooks: ResidentHooks) -> ModelStore:
        return ModelStore(
            hooks, assignment.control_net_bytes, assignment.policy, assignment.model_bytes, memory
        )

    def say(line: str) -> None:
        if assignment.report_evictions:
            print(f"{assignment.name}: {line}", file=sys.stderr, flush=True)

    models = DeviceModels(
        assignment.device,
        assignment.dtype,
        store,
        assignment.lora_bytes,
        partial(computing_of, assignment),
        HostCopies(share_of_host if torch.device(assignment.device).type == "cuda" else nothing),
        say,
    )
    if (place := assignment.templates) is not None:
        models.template_store = TemplateStore(
            Path(place.folder), place.memory_bytes, place.disk_bytes, registering(models.device)
        )
    return models


def computing_of(assignment: WorkerConfig, stream: Stream) -> Computing:
    """Creates a worker's stage executor. On a GPU, it records CUDA graphs for two streams, with one
    memory pool each.
    """
    device = torch.device(assignment.device)
    if device.type != "cuda" or not assignment.cuda_graphs:
        return Eagerly()
    return Recorder(CudaGraphs(device), CudaGraphs(device), stream=stream)


def _fault(device: torch.device) -> str | None:
    """Describes a GPU that does not exist; None if the device exists. Does not use the device."""
    if device.type != "cuda" or (device.index or 0) < (count := torch.cuda.device_count()):
        return None
    return f"{device} does not exist; its worker sees {count} GPUs"


def _described(error: BaseException) -> Failure:
    """Converts an error to a `Failure`. Errors for users keep their class; others become a RunError
    with their class name.
    """
    if isinstance(error, (KatzError, Closed)):
        return Failure(type(error).__name__, str(error), error)
    if is_out_of_memory(error):
        return Failure(OutOfMemory.__name__, memory_message(error), error)
    return Failure(
        RunError.__name__, f"internal error: {type(error).__name__}: {error}".splitlines()[0], error
    )
