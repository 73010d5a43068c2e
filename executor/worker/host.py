"""Serves one device inside a worker: its models, its fair queue, what arrives from other workers,
and the requests that it has a part in.

Told what to do in messages (`worker.main`); answers through `tell`. Must not know how it was
launched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from katz_graph.context import Engine
from katz_graph.errors import Cancelled, KatzError, OutOfMemory, RunError
from katz_graph.events import Event
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.measure.links import PROBES
from katz_graph.executor.transport.bulk import Bulk
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.faults import Closed
from katz_graph.executor.transport.mailbox import Address, Mailbox
from katz_graph.executor.transport.peer import Peer
from katz_graph.executor.worker.affinity import stay_on
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.device_fault import device_fault
from katz_graph.executor.worker.device_program import DeviceProgram
from katz_graph.executor.worker.execution import Exchange, Execution
from katz_graph.executor.worker.loop import DeviceJob, Single, Worker
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.services import SERVICES
from katz_graph.files.settings import Settings
from katz_graph.host.memory import is_out_of_memory, memory_message
from katz_graph.ir.device import Device
from katz_graph.ir.program import Instance
from katz_graph.models.loading.memory import DeviceMemory
from katz_graph.models.loading.store import ModelStore
from katz_graph.node import NodeType
from katz_graph.packs import load_registry

Tell = Callable[[str, Mapping[str, Any]], None]
"""Sends one message (kind, body) to the driver."""

GiveUp = Callable[[str, Mapping[str, Any]], None]
"""Ends this worker, and tells the driver why and which work was at it."""


AWAKE = 1.0  # seconds that a processor is kept busy while a request waits
WORK = {**SERVICES, **PROBES}  # what can be called


class Host:
    """Serves one device from `assign` until `close`. Reports what fails; ends all by `give_up`
    where nothing more can be done here.
    """

    def __init__(self, tell: Tell, types: Mapping[str, NodeType], give_up: GiveUp) -> None:
        self._tell, self._give_up = tell, give_up
        self._builtin = types
        self.peers: dict[str, Peer] = {}
        self._parts: dict[tuple[str, int], tuple[Execution, DeviceJob]] = {}
        self._calls: dict[int, DeviceJob] = {}

    def assign(self, assignment: WorkerConfig) -> None:
        self._settings = Settings.read(packs=[Path(folder) for folder in assignment.packs])
        self._folders = self._settings.folders()
        self._types = _Types(self._builtin, assignment.name, self._settings)
        self.models = _models(assignment)
        self._worker = Worker(assignment.name, assignment.threads, AWAKE if assignment.processors else 0.0)
        stay_on(assignment.processors)
        self.mailbox = Mailbox(self._worker.wake)
        if (fault := _fault(torch.device(assignment.device))) is None:
            self._tell("assigned", {"name": assignment.name})
        else:
            self._tell("unusable", {"message": fault})

    def close(self) -> None:
        """Ends after the unit that runs."""
        for _, job in list(self._parts.values()):
            job.cancel()
        for peer in self.peers.values():
            peer.close()
        if hasattr(self, "_worker"):
            self._worker.close()

    def connect(self, name: str, generation: int, connection: Connection, bulk: Bulk) -> None:
        """Uses this connection to another worker from now on, and tells the driver."""
        told = {"peer": name, "generation": generation}
        if name in self.peers:  # its threads may take a moment to end, and whoever calls here has pings to answer
            threading.Thread(target=self.peers[name].close, name=f"close {name}", daemon=True).start()
        self.peers[name] = Peer(name, connection, self.mailbox, bulk, lambda _, why: self._announce("lost", {**told, "message": why}))
        self._announce("connected", told)

    def begin(self, request: str, attempt: int, portion: DeviceProgram, measure: bool, previews: bool) -> None:
        """Loads what a device program needs, tells the driver, and waits for `go`."""
        told = {"request": request, "attempt": attempt}
        try:
            self._begin(request, attempt, portion, measure, previews, told)
        except Exception as error:
            self._explain("failed", told, error)

    def _begin(self, request: str, attempt: int, portion: DeviceProgram, measure: bool, previews: bool, told: Mapping[str, Any]) -> None:
        desk = _RequestExchange(request, attempt, self.mailbox, self.peers)
        engine = cast(Engine, _NoEngine(portion.program.target.device(portion.device)))
        context = RunContext(
            engine, self._folders, self._settings.output, {}, partial(self._event, told), previews=previews, types=self._types
        )
        ready = partial(self._tell, "ready", told)
        execution = Execution(portion, self.models, context, desk, measure, hold=True, on_loaded=ready)
        job = self._worker.submit(execution)
        self._parts[request, attempt] = execution, job
        job.future.add_done_callback(lambda future: self._ended(request, attempt, execution, future))

    def go(self, request: str, attempt: int) -> None:
        if (part := self._parts.get((request, attempt))) is not None:
            part[0].go()
            self._worker.wake()

    def cancel(self, request: str, attempt: int) -> None:
        """Stops an attempt before its next unit; drops what has arrived for it, or still does."""
        if (part := self._parts.get((request, attempt))) is not None:
            part[1].cancel()
        self.mailbox.discard(request, attempt)

    def call(self, identifier: int, what: str, arguments: Sequence[Any]) -> None:
        """Runs a service or probe as one unit and sends its value."""
        task = Single(lambda: WORK[what](self, *arguments))
        try:
            self._calls[identifier] = job = self._worker.submit(task)
        except Exception as error:
            return self._explain("raised", {"id": identifier}, error)
        job.future.add_done_callback(lambda future: self._returned(identifier, task, future))

    def drop(self, identifier: int) -> None:
        """Leaves a call out unless it has begun, as nobody waits for it any longer."""
        if (job := self._calls.get(identifier)) is not None:
            job.cancel()

    def _returned(self, identifier: int, task: Single, future: Future[Any]) -> None:
        self._calls.pop(identifier, None)
        error = future.exception()
        if error is None:
            error = self._answer("returned", {"id": identifier, "value": future.result(), "start": task.start, "seconds": task.seconds})
        if error is not None:
            self._explain("raised", {"id": identifier}, error)

    def _ended(self, request: str, attempt: int, execution: Execution, future: Future[Any]) -> None:
        self._parts.pop((request, attempt), None)
        self.mailbox.discard(request, attempt)
        told = {"request": request, "attempt": attempt}
        error = future.exception()
        if error is None:
            error = self._answer("done", {**told, "result": future.result(), "timing": execution.timing})
        if error is not None and not isinstance(error, Cancelled):
            self._explain("failed", told, error)

    def _answer(self, kind: str, body: Mapping[str, Any]) -> Exception | None:
        """Sends a result; returns why it cannot be sent: a type that does not travel, no memory for
        a copy, a lost device.
        """
        try:
            self._tell(kind, body)
        except TypeError as unsendable:
            return RunError(f"a result cannot be sent: {unsendable}")
        except Exception as error:
            return error
        return None

    def _explain(self, kind: str, told: Mapping[str, Any], error: BaseException) -> None:
        """Reports why something failed. After a fault of the device this worker is of no use."""
        if fault := device_fault(error):
            return self._give_up(f"the device failed: {fault}", told)
        self._announce(kind, {**told, **_described(error)})

    def _announce(self, kind: str, body: Mapping[str, Any]) -> None:
        """Sends what the driver waits for. A worker that cannot even do that is of no use."""
        try:
            self._tell(kind, body)
        except Exception as error:
            self._give_up(f"a message ({kind}) cannot be told: {type(error).__name__}: {error}", body)

    def _event(self, told: Mapping[str, Any], event: Event) -> None:
        self._tell("event", {**told, "event": event})


class _Types(dict[str, NodeType]):
    """Looks up the built-in nodes, and when another one is asked for also those of the folders that
    the driver named.
    """

    def __init__(self, builtin: Mapping[str, NodeType], worker: str, settings: Settings) -> None:
        super().__init__(builtin)
        self._worker, self._settings = worker, settings

    def __missing__(self, name: str) -> NodeType:
        self |= load_registry(self._settings.packs, self._settings.folders())[0]
        if name not in self:
            raise RunError(f"{self._worker} has no pack with this type of node")
        return self[name]


class _NoEngine:
    """Stands in for the engine, for nodes inside of a step region: a worker has only a device."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        raise RunError(f"a node inside of a step region asks the engine for {name!r}, which workers do not have; use one device")


class _RequestExchange(Exchange):
    """Exchanges instances with other workers for one attempt at a request."""

    def __init__(self, request: str, attempt: int, mailbox: Mailbox, peers: Mapping[str, Peer]) -> None:
        self._request, self._attempt, self._mailbox, self._peers = request, attempt, mailbox, peers

    def _address(self, instance: Instance) -> Address:
        return Address(self._request, self._attempt, instance.ref.operation, instance.ref.output, instance.evaluation)

    def send(self, peer: str, instance: Instance, value: Any) -> None:
        if peer not in self._peers:
            raise Closed(f"there is no connection with {peer}")
        self._peers[peer].send(self._address(instance), value)

    def has(self, instance: Instance) -> bool:
        return self._mailbox.has(self._address(instance))

    def take(self, instance: Instance) -> Any:
        return self._mailbox.take(self._address(instance))


def _models(assignment: WorkerConfig) -> DeviceModels:
    memory = DeviceMemory(assignment.device)
    store = ModelStore(assignment.control_net_bytes, assignment.policy, assignment.model_bytes, memory)
    models = DeviceModels(assignment.device, assignment.dtype, store)
    if assignment.tells:
        models.residents.on_evicted = lambda line: print(f"{assignment.name}: {line}", file=sys.stderr, flush=True)
    return models


def _fault(device: torch.device) -> str | None:
    """Says what is wrong with a device, as far as that can be told without touching it."""
    if device.type != "cuda" or (device.index or 0) < (count := torch.cuda.device_count()):
        return None
    return f"{device} does not exist; its worker sees {count} GPUs"


def _described(error: BaseException) -> dict[str, Any]:
    """Turns an error into a message: errors for users keep their class, others are named."""
    if isinstance(error, (KatzError, Closed)):
        return {"kind": type(error).__name__, "message": str(error)}
    if is_out_of_memory(error):
        return {"kind": OutOfMemory.__name__, "message": memory_message(error)}
    return {"kind": "RunError", "message": f"internal error: {type(error).__name__}: {error}".splitlines()[0]}
