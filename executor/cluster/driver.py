"""Drives several workers as one: carries out programs on them, again where one was lost, and
returns results or errors.

The driver's side of the messages that `worker.main.serve` obeys. Takes no part in a step: workers
send each other what they compute.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from katz_graph.context import Context
from katz_graph.errors import Cancelled, InputError, KatzError, OutOfMemory, RunError
from katz_graph.events import Warned
from katz_graph.executor.cluster.network import Network
from katz_graph.executor.cluster.requests import TRIES, DeviceGone, NotSerializable, WorkerLost, WorkerRequest
from katz_graph.executor.cluster.supervisor import Supervisor
from katz_graph.executor.cluster.worker_handle import PATIENCE, WorkerPatience
from katz_graph.executor.engine import Called, Outcome
from katz_graph.executor.launch.base import Launcher
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.outbox import Outbox
from katz_graph.executor.worker.cancellation import cancellation, unless
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.device_program import device_program
from katz_graph.ir.device import Device, NetworkLink
from katz_graph.ir.program import Program

ERRORS: Mapping[str, type[KatzError]] = {kind.__name__: kind for kind in (InputError, RunError, OutOfMemory, Cancelled)}
GRACE = 1.0  # seconds in which the supervisor notices that a worker ended


class Cluster:
    """Carries out requests and calls on workers, by device. `devices` and `links` are for the
    planner; whoever measures them fills them in.
    """

    def __init__(
        self,
        assignments: Sequence[WorkerConfig],
        launchers: Mapping[str, Launcher],
        network: Network,
        spares: bool = False,
        patience: WorkerPatience = PATIENCE,
    ) -> None:
        self.devices: tuple[Device, ...] = ()
        self.links: Mapping[tuple[str, str], NetworkLink] = {}
        self._assignments = {one.name: one for one in assignments}
        self._network = network
        self._lock = threading.RLock()
        self._requests: dict[str, WorkerRequest] = {}
        self._calls: dict[int, tuple[str, Future[Called]]] = {}
        self._blamed: dict[str, str | int | None] = {}  # by worker that ended with a fault, the request or call that met it
        self._connections: dict[str, Outbox] = {}  # to workers that got their assignment; nothing is said to others
        self._present: dict[str, Future[None]] = {name: Future() for name in self._assignments}
        self._numbers = itertools.count(1)
        self._closed = False
        self.on_vanished: Callable[[str], None] = lambda name: None  # a worker was lost, and with it what it held
        self.on_given_up: Callable[[DeviceGone], None] = lambda error: None  # a worker was lost and is not replaced
        self._supervisor = Supervisor(launchers, self._heard, self._vanished, self._appeared, self._given_up, spares, patience)

    def start(self) -> None:
        """Starts all workers and connects them with each other. RunError when one cannot be
        started; all are closed then.
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

    @property
    def assignments(self) -> Mapping[str, WorkerConfig]:
        return self._assignments

    def shares_memory(self, source: str, target: str) -> bool:
        """Returns whether transfers between two devices stay in the memory of one host."""
        return self._network.shares_memory(source, target)

    def pids(self) -> Mapping[str, int | None]:
        """Returns process ids by device, spares included; None where one runs on another host."""
        return self._supervisor.pids()

    def close(self) -> None:
        """Fails what is under way and ends all workers."""
        with self._lock:
            self._closed = True
            asked: list[Future[Any]] = [request.future for request in self._requests.values()]
            asked += [future for _, future in self._calls.values()]
            for future in (*asked, *self._present.values()):
                if not future.done():
                    future.set_exception(Cancelled("cancelled"))
        self._supervisor.close()
        with self._lock:
            for outbox in self._connections.values():
                outbox.close()

    def _send(self, device: str, kind: str, body: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Sends to a worker that is there. A message to one that is gone is dropped: whoever
        noticed reports the loss. The lock is held.
        """
        if (connection := self._connections.get(device)) is not None:
            connection.send(kind, body, descriptors)

    def run(self, program: Program, context: Context, measure: bool = False) -> Outcome:
        request = WorkerRequest(f"r{next(self._numbers)}", program, measure, context.previews)
        forget = context.on_cancel(lambda: request.news.put(None))
        try:
            with self._lock:
                self._check_open()
                self._requests[request.name] = request
                self._begin(request)
            while not request.future.done() or not request.news.empty():
                context.check_cancelled()
                news = request.news.get()
                if isinstance(news, Warned):
                    context.warn(news.message)
                elif news is not None:
                    context.report(news)
            return request.future.result()
        except BaseException:
            with self._lock:
                self._cancel(request)
            raise
        finally:
            forget()
            with self._lock:
                self._requests.pop(request.name, None)

    def call(self, device: str, what: str, *arguments: Any, context: Context | None = None) -> Called:
        """Calls a service on a worker; again on its replacement where the worker was lost."""
        tries = 1
        with cancellation(context) as cancelled:
            while True:
                identifier, future = next(self._numbers), Future[Called]()
                try:
                    self._ask(device, identifier, future, cancelled, {"id": identifier, "what": what, "arguments": list(arguments)})
                    return unless(cancelled, future)
                except WorkerLost as lost:
                    if tries == TRIES and not lost.bystander:
                        raise
                    tries += not lost.bystander
                finally:
                    self._end_call(identifier)

    def call_all(self, what: str, seconds: float) -> None:
        """Calls a service on all workers at once, but not on replacements of lost ones. Calls that
        take longer than `seconds` go on; a worker ends its call before it does what is asked of it
        later. Raises their first error, when all have been asked.
        """
        with self._lock:
            self._check_open()
            asked = {next(self._numbers): (device, Future[Called]()) for device in self._connections}
            self._calls |= asked
            for identifier, (device, _) in asked.items():
                self._send(device, "call", {"id": identifier, "what": what, "arguments": []})
        for identifier, (_, future) in asked.items():
            future.add_done_callback(partial(self._forget_call, identifier))
        done, _ = wait([future for _, future in asked.values()], seconds)
        errors = [error for future in done if not isinstance(error := future.exception(), WorkerLost | None)]
        if errors:
            raise errors[0]

    def _forget_call(self, identifier: int, _: Future[Called]) -> None:
        with self._lock:
            self._calls.pop(identifier, None)

    def _end_call(self, identifier: int) -> None:
        """Forgets a call, and has the worker drop it where it has not begun."""
        with self._lock:
            device, future = self._calls.pop(identifier, ("", None))
            if future is not None and not future.done():
                self._send(device, "drop", {"id": identifier})

    def _ask(self, device: str, identifier: int, future: Future[Called], cancelled: Future[None], body: Mapping[str, Any]) -> None:
        """Sends a call as soon as the device has a worker whose loss would be noticed."""
        while True:
            present = self._wait_for(device, cancelled)
            with self._lock:
                self._check_open()
                if present is self._present[device]:
                    self._calls[identifier] = device, future
                    try:
                        return self._send(device, "call", body)
                    except TypeError as error:
                        raise NotSerializable(f"{body['what']} on {device}: {error}") from None

    def _wait_for(self, device: str, cancelled: Future[None]) -> Future[None]:
        """Waits until a worker has its assignment and its connections. Returns the future that
        stands for this until the worker is lost.
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
        """Sends every worker its device program, or waits until all of them are there and
        connected; fails where one will not be.
        """
        for present in (self._present[device] for device in request.devices):
            if present.done() and (error := present.exception()) is not None:
                return request.future.set_exception(error)
        request.waiting = not self._network.connects(request.devices)
        if request.waiting:
            return
        told = {"request": request.name, "attempt": request.attempt}
        try:
            for device in request.devices:
                portion = device_program(request.program, device)
                wanted = {"measure": request.measure, "previews": request.previews}
                self._send(device, "begin", {**told, "portion": portion, **wanted})
        except TypeError as error:
            self._cancel(request)
            request.future.set_exception(NotSerializable(str(error)))

    def _try_again(self, request: WorkerRequest, why: str, bystander: bool = False) -> None:
        """Begins a request anew; fails it after its last try, unless another one was at fault."""
        self._cancel(request)
        if request.tries >= TRIES and not bystander:
            if not request.future.done():
                request.future.set_exception(
                    WorkerLost(f"sampler {request.program.name}: {why}, in {TRIES} attempts; see what ends workers")
                )
            return
        request.news.put(Warned(f"sampler {request.program.name}: {why}; it begins again"))
        request.tries += not bystander
        request.again()
        self._begin(request)

    def _postpone(self, request: WorkerRequest, attempt: int) -> None:
        """Releases what workers hold for a request, and begins it again a little later: others use
        what it needs.
        """
        if request.is_current(attempt):
            self._cancel(request)
            request.again()
            request.waiting = True
            self._later(lambda: self._begin_waiting(request))

    def _begin_waiting(self, request: WorkerRequest) -> None:
        """Begins a request that still waits, and that somebody still waits for."""
        if request.waiting and not request.future.done() and self._requests.get(request.name) is request:
            self._begin(request)

    def _cancel(self, request: WorkerRequest) -> None:
        for device in request.devices:
            self._send(device, "cancel", {"request": request.name, "attempt": request.attempt})

    # what workers say

    def _heard(self, name: str, kind: str, body: Mapping[str, Any]) -> None:
        """Handles a message of a worker."""
        with self._lock:
            if kind == "fault":
                self._blamed[name] = body.get("request") or body.get("id")
                return
            request = self._requests.get(body.get("request", ""))
            if request is not None and not request.is_current(body["attempt"]):
                return
            if kind == "assigned":
                self._network.joined(name, self._send)
                self._mark_present()  # the only worker has nobody to be connected with
            elif kind == "unusable":
                self._given_up(name, RunError(f"device {name}: {body['message']}"))
            elif kind in ("connected", "listening"):
                self._network.heard(name, kind, body, self._send)
                self._mark_present()
            elif kind == "unmet":
                if not self._network.unmet(name, body, self._send):
                    self._given_up(name, RunError(f"device {name} cannot reach {body['peer']}: {body['message']}"))
            elif kind in ("returned", "raised"):
                self._answered(kind, body)
            elif kind == "lost":
                self._parted(name, body)
            elif request is not None:
                self._heard_of(request, name, kind, body)

    def _heard_of(self, request: WorkerRequest, name: str, kind: str, body: Mapping[str, Any]) -> None:
        match kind:
            case "ready":
                request.ready.add(name)
                if request.ready == set(request.devices):
                    for device in request.devices:
                        self._send(device, "go", {"request": request.name, "attempt": request.attempt})
            case "event":
                request.news.put(body["event"])
            case "done":
                if request.finished(name, body["timing"], body["result"]):
                    request.future.set_result(request.outcome())
            case "failed" if body["kind"] == "Closed":
                self._later(lambda: self._restart(request, body["attempt"], f"{name} lost a connection ({body['message']})"))
            case "failed" if body["kind"] == "NoRoom":
                self._postpone(request, body["attempt"])
            case "failed":
                self._cancel(request)
                request.future.set_exception(_error(body))

    def _answered(self, kind: str, body: Mapping[str, Any]) -> None:
        _, future = self._calls.get(body["id"], ("", None))
        if future is None or future.done():
            return
        if kind == "returned":
            future.set_result(Called(body["value"], body["start"], body["seconds"]))
        else:
            future.set_exception(_error(body))

    def _parted(self, name: str, body: Mapping[str, Any]) -> None:
        """Connects two workers anew that lost their connection, where both turn out to be alive.
        Until then no request begins on them.
        """
        peer, why = body["peer"], f"{name} and {body['peer']} lost their connection"
        self._network.lost(name, peer, body["generation"])
        concerned = [(one, one.attempt) for one in self._requests.values() if {name, peer} <= set(one.devices) and not one.waiting]

        def mend() -> None:
            if self._network.parted(name, peer, body["generation"], self._send):
                for request, attempt in concerned:
                    self._restart(request, attempt, why)

        self._later(mend)

    def _later(self, act: Callable[[], None]) -> None:
        """Acts after a grace period, within which the loss of a worker becomes known: its peers
        notice first.
        """

        def locked() -> None:
            with self._lock:
                if not self._closed:
                    act()

        timer = threading.Timer(GRACE, locked)
        timer.daemon = True
        timer.start()

    def _restart(self, request: WorkerRequest, attempt: int, why: str) -> None:
        """Tries again unless that happened already."""
        if request.is_current(attempt):
            self._try_again(request, why)

    # workers that come and go

    def _appeared(self, name: str, connection: Connection) -> None:
        """Sends a new worker, which was told nothing yet, its assignment."""
        with self._lock:
            if (stale := self._connections.get(name)) is not None:
                stale.close()
            self._connections[name] = Outbox(connection)
            self._send(name, "assign", {"assignment": self._assignments[name]})

    def _vanished(self, name: str, why: str) -> None:
        """Handles the loss of a worker that another one replaces."""
        with self._lock:
            if self._closed:
                return
            if (outbox := self._connections.pop(name, None)) is not None:
                outbox.close()
            if self._present[name].done():
                self._present[name] = Future()
            self._network.left(name)
            self.on_vanished(name)
            blamed = self._blamed.pop(name, None)
            for number, (device, future) in list(self._calls.items()):
                if device == name and not future.done():
                    future.set_exception(WorkerLost(f"{device}: {why}", (device,), bystander=blamed not in (None, number)))
            for request in list(self._requests.values()):
                if name in request.devices and not request.waiting and not request.future.done():
                    self._try_again(request, f"{name}: {why}", bystander=blamed not in (None, request.name))
            self._mark_present()  # others may have lacked nothing but their connections with it

    def _given_up(self, name: str, error: RunError) -> None:
        """Handles the loss of a worker for good; the others go on without it."""
        gone = DeviceGone(str(error), (name,))
        self.on_given_up(gone)
        with self._lock:
            if self._present[name].done():
                self._present[name] = Future()
            self._present[name].set_exception(gone)
            for request in list(self._requests.values()):
                if name in request.devices and not request.future.done():
                    request.future.set_exception(gone)
            self._network.left(name)
            self._mark_present()

    def _mark_present(self) -> None:
        """Marks fully connected workers as present; begins requests that waited for them."""
        for name, present in self._present.items():
            if not present.done() and self._network.is_complete(name):
                present.set_result(None)
        for request in list(self._requests.values()):
            self._begin_waiting(request)


def _error(body: Mapping[str, Any]) -> KatzError:
    return ERRORS.get(body["kind"], RunError)(body["message"])
