"""Keeps one worker running per device. Detects a lost worker within seconds and replaces it,
immediately if a spare is ready. Must not know what workers do: the driver assigns devices, connects
workers and sends work.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from katz_graph.core.errors import Cancelled, RunError
from katz_graph.core.phases import Phase
from katz_graph.executor.cluster.worker_handle import PATIENCE, State, WorkerHandle, WorkerPatience
from katz_graph.executor.launch.base import Launcher
from katz_graph.executor.messages import FromWorker
from katz_graph.executor.transport.connection import MessageChannel

SPARE = "spare"


class Supervisor:
    """Manages workers by device name. Equal launchers mean the same host, and each host has one
    spare. A context manager.

    Callbacks run in background threads and must be short:

    - `on_message(name, message)`: a worker sent a message.
    - `on_lost(name, reason)`: a worker died or froze.
    - `on_replaced(name, connection)`: a new worker replaces it, with no messages received yet.
    - `on_failed(name, error)`: the worker will not be replaced.
    """

    def __init__(
        self,
        launchers: Mapping[str, Launcher],
        on_message: Callable[[str, FromWorker], None],
        on_lost: Callable[[str, str], None],
        on_replaced: Callable[[str, MessageChannel], None],
        on_failed: Callable[[str, RunError], None],
        spares: bool = False,
        patience: WorkerPatience = PATIENCE,
    ) -> None:
        self._launchers = dict(launchers)
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_replaced = on_replaced
        self._on_failed = on_failed
        self._with_spares = spares
        self._patience = patience
        self._changed = threading.Condition()
        # a loss and its replacement are reported before the next loss
        self._telling = threading.RLock()
        self._workers: dict[str, WorkerHandle] = {}
        self._spares: dict[Launcher, WorkerHandle] = {}
        self._waiting: set[WorkerHandle] = set()  # ready spares
        self._all: list[WorkerHandle] = []  # includes workers that are still ending
        self._started: set[str] = set()  # names that have had a ready worker
        self._losses: dict[str | Launcher, Losses] = {}  # by name; for spares by launcher
        self._failures: dict[str, RunError] = {}  # why a device has no worker and gets none
        self._closing = threading.Event()
        self._monitor = threading.Thread(target=self._watch, name="katz-heartbeats", daemon=True)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Mapping[str, MessageChannel]:
        """Starts all workers concurrently and waits until they are ready. If one does not start,
        closes all and raises RunError with its name and the reason.
        """
        atexit.register(self.close)
        try:
            self._monitor.start()
            with self._changed:
                for name, launcher in self._launchers.items():
                    self._workers[name] = self._launch(name, launcher)
                self._wait_until_started(self._launchers)
            for launcher in dict.fromkeys(self._launchers.values()):
                self._keep_spare(launcher)
            return {name: self.connection(name) for name in self._launchers}
        except BaseException:
            self.close()
            raise

    def add(self, name: str, launcher: Launcher) -> MessageChannel:
        """Starts an additional worker and waits until it is ready. Raises RunError if it does not
        start; the name may then be added again.
        """
        with self._changed:
            self._launchers[name] = launcher
            self._losses.pop(name, None)
            self._failures.pop(name, None)
            self._workers[name] = self._launch(name, launcher)
            self._wait_until_started((name,))
        return self.connection(name)

    def _wait_until_started(self, names: Collection[str]) -> None:
        """Waits for the first worker of each name. The caller holds the lock."""
        while not self._started.issuperset(names):
            for name in names:
                if name in self._failures:
                    raise self._failures[name]
            if self._closing.is_set():
                raise Cancelled("cancelled")
            # the timeout lets a Ctrl-C that arrives just before the wait take effect
            self._changed.wait(self._patience.ping)

    def connection(self, name: str) -> MessageChannel:
        """Returns the connection to a device's current worker. Raises RunError if it has none."""
        with self._changed:
            if name in self._failures:
                raise self._failures[name]
            worker = self._workers.get(name)
            if worker is None or worker.connection is None or worker.state in ("starting", "dead"):
                raise RunError(f"device {name}: its worker is being replaced")
            return worker.connection

    def states(self) -> dict[str, State]:
        with self._changed:
            return {name: worker.state for name, worker in self._workers.items()}

    def pids(self) -> dict[str, int | None]:
        """Returns process ids by device, including ready spares."""
        with self._changed:
            waiting = {
                f"{SPARE} {number}": spare
                for number, spare in enumerate(self._spares.values())
                if spare.state == "ready"
            }
            return {name: worker.pid for name, worker in {**self._workers, **waiting}.items()}

    def phases(self) -> list[Phase]:
        """Returns the phases of the start of each device's current worker."""
        with self._changed:
            found = [phase for worker in self._workers.values() for phase in worker.phases]
        return list(dict.fromkeys(found))  # workers of one fork server have its phases in common

    def close(self) -> None:
        """Ends all workers: asks them to stop, waits `WorkerPatience.stop` seconds, then kills. May
        be called repeatedly, and from an exit handler.
        """
        self._closing.set()
        with self._changed:
            workers = list(self._all)
        try:
            for worker in workers:
                worker.stop()
            deadline = time.monotonic() + self._patience.stop
            for worker in workers:
                worker.join(max(0.0, deadline - time.monotonic()))
        finally:
            for worker in workers:
                worker.end("the run ended")
            for worker in workers:
                worker.clean_up()
            if self._monitor.ident is not None:
                self._monitor.join()
            atexit.unregister(self.close)

    def _launch(self, name: str, launcher: Launcher, background: bool = False) -> WorkerHandle:
        """Starts a worker. The caller holds the lock."""
        worker = WorkerHandle(
            name, launcher, self._patience, self._ready, self._received, self._lost, background
        )
        self._all = [known for known in self._all if not known.join(0.0)] + [worker]
        worker.start()
        return worker

    def _keep_spare(self, launcher: Launcher) -> None:
        with self._changed:
            if (
                self._with_spares
                and launcher.any_device
                and launcher not in self._spares
                and not self._closing.is_set()
            ):
                self._spares[launcher] = self._launch(SPARE, launcher, background=True)

    def _watch(self) -> None:
        while not self._closing.wait(self._patience.ping):
            with self._changed:
                workers = list(self._all)
            for worker in workers:
                worker.check()

    def _received(self, worker: WorkerHandle, message: FromWorker) -> None:
        self._on_message(worker.name, message)

    def _ready(self, worker: WorkerHandle) -> None:
        with self._telling:
            with self._changed:
                if self._closing.is_set() or not self._has_place(worker):
                    return
                first = worker.name not in self._started
                self._started.add(worker.name)
                self._changed.notify_all()
            if not first:
                self._stands_in(worker)

    def _has_place(self, worker: WorkerHandle) -> bool:
        """Returns whether a newly ready worker serves a device. A ready spare replaces a worker
        that is still starting, which becomes the spare. The caller holds the lock.
        """
        if self._spares.get(worker.launcher) is not worker:
            return self._workers.get(worker.name) is worker
        for name, replacement in self._workers.items():
            if replacement.state == "starting" and replacement.launcher == worker.launcher:
                worker.name, replacement.name = name, SPARE
                self._workers[name], self._spares[worker.launcher] = worker, replacement
                return True
        self._waiting.add(worker)
        return False

    def _stands_in(self, worker: WorkerHandle) -> None:
        assert worker.connection is not None
        self._on_replaced(worker.name, worker.connection)
        self._keep_spare(worker.launcher)

    def _lost(self, worker: WorkerHandle, reason: str) -> None:
        """Reports a lost worker. Replaces it unless none was ever ready, or it is a thread."""
        name = worker.name
        with self._telling:
            with self._changed:
                if self._spares.get(worker.launcher) is worker:
                    return self._replace_spare(worker, reason)
                if self._closing.is_set() or self._workers.get(name) is not worker:
                    return
                if name not in self._started:
                    self._fail(name, f"did not start: {reason}")
                    self._changed.notify_all()
                    return
            if worker.launcher.in_process:
                return self._on_failed(name, self._fail(name, f"ended: {reason}"))
            if worker.was_ready:
                self._on_lost(name, reason)
            self._replace(worker, reason)

    def _fail(self, name: str, why: str) -> RunError:
        """Records why a device gets no more workers."""
        error = self._failures[name] = RunError(f"device {name}: its worker {why}", (name,))
        return error

    def _replace(self, lost: WorkerHandle, reason: str) -> None:
        """Replaces a lost worker by the spare or a new one, unless it failed too often."""
        name = lost.name
        with self._changed:
            often, spare = self._lost_too_often(name, lost), None
            if often:
                self._fail(name, f"{often} and is not started again; last reason: {reason}")
            elif self._closing.is_set():
                return
            elif (
                waiting := self._spares.get(lost.launcher)
            ) in self._waiting and waiting.state == "ready":
                spare = self._spares.pop(lost.launcher)
                self._waiting.discard(spare)
                spare.name = name
                self._workers[name] = spare
            else:
                self._workers[name] = self._launch(name, lost.launcher)
        if often:
            self._on_failed(name, self._failures[name])
        elif spare is not None:
            self._stands_in(spare)

    def _replace_spare(self, lost: WorkerHandle, reason: str) -> None:
        """Starts another spare immediately. If spares failed too often, waits until the next worker
        is replaced. The caller holds the lock.
        """
        del self._spares[lost.launcher]
        self._waiting.discard(lost)
        if self._closing.is_set():
            return
        if often := self._lost_too_often(lost.launcher, lost):
            logging.getLogger(__name__).warning(
                "the spare worker %s, and is started again when needed; last reason: %s",
                often,
                reason,
            )
            del self._losses[lost.launcher]
        else:
            self._keep_spare(lost.launcher)

    def _lost_too_often(self, key: str | Launcher, lost: WorkerHandle) -> str:
        """Counts a loss. Returns a description if the worker failed too often to be replaced, else
        an empty string.
        """
        losses = self._losses.setdefault(key, Losses())
        return losses.too_often(lost.was_ready, self._patience, time.monotonic())


@dataclass(slots=True)
class Losses:
    """Counts the losses of one device's workers, or of one host's spares."""

    deaths: list[float] = field(default_factory=list)
    not_ready: int = 0  # consecutive workers that ended before they were ready

    def too_often(self, was_ready: bool, patience: WorkerPatience, now: float) -> str:
        """Counts a loss. Returns a description if losses exceed the limits of `patience`, else an
        empty string.
        """
        self.deaths = [when for when in self.deaths if when > now - patience.within] + [now]
        self.not_ready = 0 if was_ready else self.not_ready + 1
        if len(self.deaths) >= patience.deaths:
            return f"died {len(self.deaths)} times within {patience.within:g} s"
        if self.not_ready >= patience.max_failed_starts:
            return f"did not start {self.not_ready} times in a row"
        return ""
