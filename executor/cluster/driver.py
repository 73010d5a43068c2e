"""Drives several workers together: runs programs, retries after the loss of a worker, and returns
results or errors.

The driver's side of the message protocol that `worker.main.serve` handles. Takes no part in a step:
workers exchange tensors directly.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from katz_graph.core.errors import Cancelled, DeviceFailed, RunError
from katz_graph.core.events import Warned
from katz_graph.core.phases import Phase
from katz_graph.executor.cluster.network import WorkerNetwork
from katz_graph.executor.cluster.requests import (
    TRIES,
    CallResult,
    NotSerializable,
    Outcome,
    ServiceCall,
    WorkerLost,
    WorkerRequest,
)
from katz_graph.executor.cluster.supervisor import Supervisor
from katz_graph.executor.cluster.worker_handle import PATIENCE, WorkerPatience
from katz_graph.executor.launch.base import Launcher
from katz_graph.executor.messages import (
    Advanced,
    Assign,
    Assigned,
    Begin,
    CallService,
    Cancel,
    Connected,
    ConnectFailed,
    Disconnected,
    Done,
    DropCall,
    Failed,
    Failure,
    Fault,
    FromWorker,
    Go,
    Happened,
    Listening,
    OfRequest,
    Prefetch,
    Raised,
    Ready,
    Returned,
    RunEnded,
    RunPlace,
    ToWorker,
    Unusable,
)
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import MessageChannel, Sender
from katz_graph.executor.worker.cancellation import cancellation, unless
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.device_program import device_program
from katz_graph.ir.device import Device, NetworkLink
from katz_graph.ir.program import Program
from katz_graph.models.loading.residency import NoRoom
from katz_graph.node.types import Context

GRACE = 1.0  # seconds within which the supervisor notices the end of a worker


class Cluster:
    """Runs requests and service calls on workers, by device. `devices` and `links`: inputs of the
    planner, set after measuring. `on_lost` is called when a worker and its state are lost, before
    the replacement.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerConfig],
        launchers: Mapping[str, Launcher],
        network: WorkerNetwork,
        spares: bool = False,
        patience: WorkerPatience = PATIENCE,
        on_lost: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.devices: tuple[Device, ...] = ()
        self.links: Mapping[tuple[str, str], NetworkLink] = {}
        self._assignments = {one.name: one for one in assignments}
        self._network = network
        self._lock = threading.RLock()
        self._requests: dict[str, WorkerRequest] = {}
        self._calls: dict[int, ServiceCall] = {}
        # worker that ended with a fault -> its request or call at that time
        self._blamed: dict[str, str | int | None] = {}
        self.launchers = dict(launchers)
        # only workers that have received their assignment; others get no messages
        self._connections: dict[str, Sender] = {}
        self._present: dict[str, Future[None]] = {name: Future() for name in self._assignments}
        self._numbers = itertools.count(1)
        self._closed = False
        self.losses: Counter[str] = Counter()  # of workers, by device
        self._on_lost = on_lost
        # called when a worker is lost and not replaced
        self.on_failed: Callable[[DeviceFailed], None] = lambda error: None
        self._supervisor = Supervisor(
            launchers, self._on_message, self._lost, self._appeared, self._failed, spares, patience
        )

    def start(self) -> None:
        """Starts all workers and connects them with each other. Raises RunError if a worker does
        not start, after closing all of them.
        """
        try:
            for name, connection in self._supervisor.start().items():
                with self._lock:
                    if name not in self._connections:  # not lost and replaced already
                        self._appeared(name, connection)
            for name in self._assignments:
                self._wait_for(name, Future())
        except BaseException:
            self.close()
            raise

    def add(self, config: WorkerConfig, launcher: Launcher) -> None:
        """Starts an additional worker without connections to other workers. Raises RunError if it
        does not start.
        """
        with self._lock:
            self._check_open()
            self._present[config.name] = Future()
        connection = self._supervisor.add(config.name, launcher)
        with self._lock:  # other threads may be iterating over the old mappings
            self._assignments = {**self._assignments, config.name: config}
            self.launchers = {**self.launchers, config.name: launcher}
            self._appeared(config.name, connection)
        self._wait_for(config.name, Future())

    def is_in_process(self, name: str) -> bool:
        """Returns whether this process serves the device, so calls may pass objects that cannot be
        serialized.
        """
        return self.launchers[name].in_process

    @property
    def assignments(self) -> Mapping[str, WorkerConfig]:
        return self._assignments

    def on_one_host(self, source: str, target: str) -> bool:
        """Returns whether transfers between two devices stay on one host."""
        return self._network.on_one_host(source, target)

    def transport(self, source: str, target: str) -> str:
        """Returns the transport of tensors between two devices."""
        return self._network.transport(source, target)

    def pids(self) -> Mapping[str, int | None]:
        """Returns process ids by device, spares included; None for a worker on another host."""
        return self._supervisor.pids()

    def phases(self) -> list[Phase]:
        """Returns the phases of the start of the workers on this host."""
        return self._supervisor.phases()

    def close(self) -> None:
        """Fails pending requests and calls, and ends all workers."""
        with self._lock:
            self._closed = True
            asked: list[Future[Any]] = [request.future for request in self._requests.values()]
            asked += [call.future for call in self._calls.values()]
            for future in (*asked, *self._present.values()):
                if not future.done():
                    future.set_exception(Cancelled("cancelled"))
        self._supervisor.close()
        with self._lock:
            for outbox in self._connections.values():
                outbox.close()

    def _send(self, device: str, message: ToWorker, descriptors: Sequence[int] = ()) -> None:
        """Sends a message to a worker if it is connected. Otherwise drops the message, because the
        loss of the worker is reported separately. The caller holds the lock.
        """
        if (connection := self._connections.get(device)) is not None:
            connection.send(message, descriptors)

    def run(self, program: Program, context: Context, measure: bool = False) -> Outcome:
        request = WorkerRequest(f"r{next(self._numbers)}", program, context, measure)
        events = request.events
        forget = context.on_cancel(lambda: events.put(None))
        try:
            with self._lock:
                self._check_open()
                self._requests[request.name] = request
                self._begin(request)
            while not request.future.done() or not events.empty():
                context.check_cancelled()
                event = events.get()
                if isinstance(event, Warned):
                    context.warn(event.message)
                elif event is not None:
                    context.report(event)
            return request.future.result()
        except BaseException:
            with self._lock:
                self._cancel(request)
            raise
        finally:
            forget()
            with self._lock:
                self._requests.pop(request.name, None)
            del request  # avoid a cycle: error -> traceback -> this frame -> request -> error

    def prefetch(self, device: str, recipes: Sequence[Any], context: Context) -> None:
        """Makes a worker read the files of models that a run will use. Ignores models that cannot
        be sent: they are read when they are used.
        """
        with self._lock, suppress(TypeError):
            self._send(device, Prefetch(recipes, context.arrival))

    def run_ended(self, context: Context) -> None:
        """Reports to all workers that a run sends no more work."""
        with self._lock:
            for device in self._connections:
                self._send(device, RunEnded(context.arrival))

    def call(
        self,
        device: str,
        what: str,
        *arguments: Any,
        context: Context | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> CallResult:
        """Calls a service on a worker, and retries on the replacement if the worker is lost.
        `progress` is called in this thread with how much is done.
        """
        tries = 1
        with cancellation(context) as cancelled:
            while True:
                wanted = CallService(next(self._numbers), what, arguments, _place(context))
                call = ServiceCall(device)
                cancelled.add_done_callback(partial(_end, call.progress))
                try:
                    self._ask(wanted, call, cancelled)
                    while (done := call.progress.get()) is not None:
                        progress(done)
                    return unless(cancelled, call.future)
                except WorkerLost as lost:
                    if tries == TRIES and not lost.bystander:
                        raise
                    tries += not lost.bystander
                finally:
                    self._end_call(wanted.id)
                    del call  # avoid a cycle: error -> traceback -> this frame -> future -> error

    def call_all(self, what: str, seconds: float) -> None:
        """Calls a service on all current workers concurrently; does not retry on replacements.
        Stops waiting after `seconds`; slower calls continue and delay later messages to their
        workers. Raises the first error of the finished calls; ignores lost workers.
        """
        with self._lock:
            self._check_open()
            asked = {next(self._numbers): ServiceCall(device) for device in self._connections}
            self._calls |= asked
            for identifier, call in asked.items():
                self._send(call.device, CallService(identifier, what))
        for identifier, call in asked.items():
            call.future.add_done_callback(partial(self._forget_call, identifier))
        done, _ = wait([call.future for call in asked.values()], seconds)
        errors = [
            error
            for future in done
            if not isinstance(error := future.exception(), WorkerLost | None)
        ]
        if errors:
            raise errors[0]

    def _forget_call(self, identifier: int, _: Future[CallResult]) -> None:
        with self._lock:
            self._calls.pop(identifier, None)

    def _end_call(self, identifier: int) -> None:
        """Forgets a call. If it has no result yet, asks the worker to stop it."""
        with self._lock:
            call = self._calls.pop(identifier, None)
            if call is not None and not call.future.done():
                self._send(call.device, DropCall(identifier))

    def _ask(self, wanted: CallService, call: ServiceCall, cancelled: Future[None]) -> None:
        """Sends a call once the device's worker is connected. If that worker is lost, the call
        fails.
        """
        while True:
            present = self._wait_for(call.device, cancelled)
            with self._lock:
                self._check_open()
                if present is self._present[call.device]:
                    self._calls[wanted.id] = call
                    try:
                        return self._send(call.device, wanted)
                    except TypeError as error:
                        where = f"{wanted.service} on {call.device}"
                        raise NotSerializable(f"{where}: {error}") from None

    def _wait_for(self, device: str, cancelled: Future[None]) -> Future[None]:
        """Waits until a worker has its assignment and its connections. Returns the `present`
        future, which is replaced when the worker is lost.
        """
        with self._lock:
            present = self._present[device]
        unless(cancelled, present)
        return present

    def _check_open(self) -> None:
        if self._closed:
            raise Cancelled("cancelled")

    # requests

    def _begin(self, request: WorkerRequest) -> None:
        """Sends every worker its device program. If a worker is missing or unconnected, marks the
        request as waiting. If a worker will not be replaced, fails the request.
        """
        for present in (self._present[device] for device in request.devices):
            if present.done() and (error := present.exception()) is not None:
                return request.future.set_exception(error)
        request.waiting = not self._network.connects(request.devices)
        if request.waiting:
            return
        context = request.context
        try:
            for device in request.devices:
                share = device_program(request.program, device)
                begin = Begin(
                    request.name,
                    request.attempt,
                    share,
                    request.measure,
                    context.previews,
                    context.progress_interval,
                    _place(context, request.program.region.end.id),
                    context,
                    len(request.devices) > 1,
                )
                self._send(device, begin)
        except TypeError as error:
            self._cancel(request)
            request.future.set_exception(NotSerializable(str(error)))

    def _try_again(self, request: WorkerRequest, why: str, bystander: bool = False) -> None:
        """Restarts a request. Fails it after the last attempt, unless another request caused the
        fault.
        """
        self._cancel(request)
        if request.tries >= TRIES and not bystander:
            if not request.future.done():
                request.future.set_exception(
                    WorkerLost(
                        f"sampler {request.program.name}: {why}, in {TRIES} attempts; the log "
                        "says why the workers ended"
                    )
                )
            return
        request.events.put(Warned(f"sampler {request.program.name}: {why}; it starts again"))
        request.tries += not bystander
        request.again()
        self._begin(request)

    def _postpone(self, request: WorkerRequest, attempt: int) -> None:
        """Cancels a request on its workers and restarts it after a short delay. Used when other
        requests occupy the memory.
        """
        if request.is_current(attempt):
            self._cancel(request)
            request.again()
            request.waiting = True
            self._later(lambda: self._begin_waiting(request))

    def _begin_waiting(self, request: WorkerRequest) -> None:
        """Starts a request that still waits and has not ended."""
        if (
            request.waiting
            and not request.future.done()
            and self._requests.get(request.name) is request
        ):
            self._begin(request)

    def _cancel(self, request: WorkerRequest) -> None:
        for device in request.devices:
            self._send(device, Cancel(request.name, request.attempt))

    # messages from workers

    def _on_message(self, name: str, message: FromWorker) -> None:
        """Handles a message from a worker."""
        with self._lock:
            match message:
                case Fault():
                    self._blamed[name] = message.culprit
                case Assigned():
                    self._network.joined(name, self._assignments[name].device, self._send)
                    self._mark_present()  # a single worker has no peers to connect to
                case Unusable():
                    self._failed(name, RunError(f"device {name}: {message.message}"))
                case Connected():
                    self._network.connected(name, message)
                    self._mark_present()
                case Listening():
                    self._network.listening(name, message, self._send)
                case ConnectFailed():
                    if not self._network.connect_failed(name, message, self._send):
                        self._failed(
                            name,
                            RunError(
                                f"device {name} cannot reach {message.peer}: {message.message}"
                            ),
                        )
                case Disconnected():
                    self._disconnected(name, message)
                case Advanced() | Returned() | Raised():
                    self._answered(message)
                case Ready() | Happened() | Done() | Failed():
                    request = self._requests.get(message.request)
                    if request is not None and request.is_current(message.attempt):
                        self._on_request_message(request, name, message)

    def _on_request_message(self, request: WorkerRequest, name: str, message: OfRequest) -> None:
        match message:
            case Ready():
                request.ready.add(name)
                if request.ready == set(request.devices):
                    for device in request.devices:
                        self._send(device, Go(request.name, request.attempt))
            case Happened():
                request.events.put(message.event)
            case Done():
                if request.finished(name, message):
                    request.future.set_result(request.outcome())
            case Failed(failure=Failure(kind, why)) if kind == Closed.__name__:
                self._later(
                    lambda: self._restart(
                        request, message.attempt, f"{name} lost a connection ({why})"
                    )
                )
            case Failed(failure=Failure(kind)) if kind == NoRoom.__name__:
                self._postpone(request, message.attempt)
            case Failed():
                self._cancel(request)
                request.future.set_exception(message.failure.as_error())

    def _answered(self, answer: Advanced | Returned | Raised) -> None:
        call = self._calls.get(answer.id)
        if call is None or call.future.done():
            return
        match answer:
            case Advanced():
                call.progress.put(answer.done)
            case Returned():
                call.future.set_result(CallResult(answer.value, answer.start, answer.seconds))
            case Raised():
                call.future.set_exception(answer.failure.as_error())

    def _disconnected(self, name: str, said: Disconnected) -> None:
        """Reconnects two workers after their connection broke, if both are alive, then restarts
        their requests. Until then, no request starts on them.
        """
        peer, why = said.peer, f"{name} and {said.peer} lost their connection"
        self._network.lost(name, peer, said.generation)
        concerned = [
            (one, one.attempt)
            for one in self._requests.values()
            if {name, peer} <= set(one.devices) and not one.waiting
        ]

        def mend() -> None:
            if self._network.reconnected(name, peer, said.generation, self._send):
                for request, attempt in concerned:
                    self._restart(request, attempt, why)

        self._later(mend)

    def _later(self, act: Callable[[], None]) -> None:
        """Runs `act` after a grace period, because peers notice a lost worker before the supervisor
        does.
        """

        def locked() -> None:
            with self._lock:
                if not self._closed:
                    act()

        timer = threading.Timer(GRACE, locked)
        timer.daemon = True
        timer.start()

    def _restart(self, request: WorkerRequest, attempt: int, why: str) -> None:
        """Restarts a request unless this attempt has already ended."""
        if request.is_current(attempt):
            self._try_again(request, why)

    # workers that start and end

    def _appeared(self, name: str, connection: MessageChannel) -> None:
        """Sends a new worker its assignment."""
        with self._lock:
            if (stale := self._connections.get(name)) is not None:
                stale.close()
            self._connections[name] = connection.sender()
            self._send(name, Assign(self._assignments[name]))

    def _lost(self, name: str, why: str) -> None:
        """Handles the loss of a worker that will be replaced."""
        with self._lock:
            if self._closed:
                return
            if (outbox := self._connections.pop(name, None)) is not None:
                outbox.close()
            if self._present[name].done():
                self._present[name] = Future()
            self._network.left(name)
            self.losses[name] += 1
            self._on_lost(name)
            blamed = self._blamed.pop(name, None)
            for number, call in list(self._calls.items()):
                if call.device == name and not call.future.done():
                    lost = WorkerLost(
                        f"{name}: {why}", (name,), bystander=blamed not in (None, number)
                    )
                    call.future.set_exception(lost)
            for request in list(self._requests.values()):
                if name in request.devices and not request.waiting and not request.future.done():
                    self._try_again(
                        request, f"{name}: {why}", bystander=blamed not in (None, request.name)
                    )
            # other workers may have waited only for connections with this one
            self._mark_present()

    def _failed(self, name: str, error: RunError) -> None:
        """Handles a worker that is lost and not replaced; the other workers continue."""
        error = DeviceFailed(str(error), (name,))
        self.on_failed(error)
        with self._lock:
            for call in list(self._calls.values()):
                if call.device == name and not call.future.done():
                    call.future.set_exception(error)
            if self._present[name].done():
                self._present[name] = Future()
            self._present[name].set_exception(error)
            for request in list(self._requests.values()):
                if name in request.devices and not request.future.done():
                    request.future.set_exception(error)
            self._network.left(name)
            self._mark_present()

    def _mark_present(self) -> None:
        """Marks fully connected workers as present and starts the requests that waited for them."""
        for name, present in self._present.items():
            if not present.done() and self._network.is_complete(name):
                present.set_result(None)
        for request in list(self._requests.values()):
            self._begin_waiting(request)


def _end(progress: queue.SimpleQueue[int | None], _: Future[None]) -> None:
    """Ends the wait for a call's progress."""
    progress.put(None)


def _place(context: Context | None, end: str = "") -> RunPlace:
    """Returns the place of a run for a message that is sent now, which starts the sampler with an
    end node, or calls a service.
    """
    if context is None:
        return RunPlace()
    seconds_after = context.seconds_after.get(end, 0.0)
    return RunPlace(context.arrival, context.due - time.monotonic(), context.client, seconds_after)
