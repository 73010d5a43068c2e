"""Manages one worker from its launch to its end: one thread launches it and reads, another sends
heartbeats. Must not know other workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from katz_graph.executor.launch.base import Launched, Launcher, mismatch
from katz_graph.executor.messages import Fault, FromWorker, Hello, Ping, Pong, Stop
from katz_graph.executor.transport.connection import Connection, MessageChannel
from katz_graph.executor.transport.faults import Closed, ProtocolError
from katz_graph.ipc.heartbeat import Heartbeat

State = Literal["starting", "ready", "suspect", "dead"]
STATUS_TIMEOUT = 0.2  # seconds that a loss is told later, at most, to tell why
BURIAL_TIMEOUT = 10.0  # seconds that a killed process may take to give back its memory


@dataclass(frozen=True, slots=True)
class WorkerPatience:
    """Sets the timeouts of a worker in seconds: to start, between pings, of silence until it is
    suspect and until it counts as frozen, to stop when asked.

    A worker that died `deaths` times `within` so many seconds is not replaced again, nor one of
    which `barren` in a row did not get ready.
    """

    start: float = 120.0
    ping: float = 0.25
    suspect: float = 1.0
    frozen: float = 2.5
    stop: float = 2.0
    deaths: int = 5
    within: float = 60.0
    barren: int = 2


PATIENCE = WorkerPatience()


class WorkerHandle:
    """Launches a worker, reads its messages and watches its heartbeat. Calls `on_ready` and
    `on_message` from its reading thread, and `on_ended` as the last, once, with the reason.
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        patience: WorkerPatience,
        on_ready: Callable[[WorkerHandle], None],
        on_message: Callable[[WorkerHandle, FromWorker], None],
        on_ended: Callable[[WorkerHandle, str], None],
        background: bool = False,
    ) -> None:
        self.name = name
        self.launcher = launcher
        self.connection: MessageChannel | None = None
        self.was_ready = False
        self._patience = patience
        self._on_ready, self._on_message, self._on_ended = on_ready, on_message, on_ended
        self._background = background
        self._burial = threading.TIMEOUT_MAX if launcher.in_process else BURIAL_TIMEOUT
        self._launched: Launched | None = None
        self._is_over = False
        self._lock = threading.Lock()
        self._reason = ""  # why we ended it
        self._stopping = threading.Event()
        self._unanswered = False
        self._pinging = self._obeying = False
        self._moved: tuple[int, int] = (0, 0)
        self._heartbeat = Heartbeat(patience.ping)  # until it is ready, of its start
        self._pinger = threading.Thread(target=self._ping, name=f"katz-ping-{name}", daemon=True)
        self._thread = threading.Thread(target=self._live, name=f"katz-reader-{name}", daemon=True)

    def start(self) -> None:
        """Launches it. Whoever may end it must know it before: Ctrl-C comes at any moment."""
        self._thread.start()

    @property
    def state(self) -> State:
        if self._is_over:
            return "dead"
        if not self.was_ready:
            return "starting"
        return "suspect" if self._heartbeat.silence > self._patience.suspect else "ready"

    @property
    def pid(self) -> int | None:
        return None if self._launched is None else self._launched.pid

    def stop(self) -> None:
        """Asks it to end; ends one that still starts."""
        if self.state == "starting":
            self.end("it was not needed any more")
        self._stopping.set()

    def end(self, reason: str = "") -> None:
        """Kills it; the reading thread does the rest, and without a reason finds one."""
        with self._lock:
            self._reason = self._reason or reason
            launched = self._launched
        if launched is not None:
            _kill(launched)
            launched.connection.shut_down()

    def bury(self) -> None:
        """Waits until everything of it is gone: for a thread, which cannot be killed, however long
        its unit takes.
        """
        self.join(self._burial)

    def join(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds; returns whether everything of it is gone."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Counts its silence, every `WorkerPatience.ping` seconds; ends it when that, or its start,
        is too long.

        Bytes that arrive are signs of life, and so are bytes that it takes while a ping waits
        behind a long message. Short messages are none: a frozen worker's socket still swallows
        them. A thread of this process is not watched, as it cannot freeze alone.
        """
        connection, launched, heartbeat = self.connection, self._launched, self._heartbeat
        heartbeat.tick()
        if self.state == "starting":
            if heartbeat.silence > self._patience.start:
                self.end(f"it did not start within {self._patience.start:g} s")
            elif launched is not None and not _is_alive(launched):
                self.end()
        elif isinstance(connection, Connection) and launched is not None and not self._is_over:
            moved = (connection.received, connection.sent if self._pinging else 0)
            if moved != self._moved or self._obeying:
                heartbeat.heard()
            self._moved = moved
            if heartbeat.silence > self._patience.frozen:
                self.end(f"it did not answer for {heartbeat.silence:.1f} s")
            elif self.state == "suspect" and not _is_alive(launched):
                self.end()

    def _live(self) -> None:
        if self._reason:
            self._is_over = True
            self._on_ended(self, self._reason)
            return
        try:
            launched = self.launcher.launch(self.name, self._background)
        except Exception as error:
            self._is_over = True
            self._on_ended(self, str(error) or type(error).__name__)
            return
        with self._lock:
            self._launched = launched
        self.connection = launched.connection
        if self._reason:
            self.end()
        reason = self._read(launched.connection)
        self._is_over = True
        words = _last_words(launched)
        _kill(launched)
        launched.connection.shut_down()
        self._stopping.set()
        self._on_ended(self, self._reason or (f"{reason}: {words}" if words else reason))
        if self._pinger.ident is not None:
            self._pinger.join()
        with suppress(Exception):
            launched.wait(self._burial)
        launched.connection.close()

    def _read(self, connection: MessageChannel) -> str:
        """Handles messages until the connection ends; returns why it did."""
        try:
            while True:
                message = connection.receive()
                self._obeying = True
                match message:
                    case Pong():
                        self._unanswered = False
                    case Hello() as hello:
                        if reason := mismatch(hello):
                            self.end(reason)
                            return reason
                        self._heartbeat = Heartbeat(self._patience.ping)
                        self.was_ready = True
                        self._on_ready(self)
                        self._pinger.start()
                    case _:
                        self._on_message(self, message)
                if isinstance(message, Fault):  # it is of no more use, and says why
                    self.end(message.message)
                    return message.message
                del message  # nothing of it is kept while the next one is waited for
                self._obeying = False
        except Closed:
            return "its connection ended"
        except ProtocolError as error:
            return str(error)
        except Exception as error:
            return f"internal error: what it sent led to {type(error).__name__}: {error}"

    def _ping(self) -> None:
        connection = self.connection
        assert connection is not None  # it has said hello
        try:
            while not self._stopping.wait(self._patience.ping):
                if not (self._unanswered or self.launcher.in_process):
                    self._unanswered = self._pinging = True
                    connection.send(Ping())
                    self._pinging = False
            connection.send(Stop())
        except Closed:
            return


# A launcher asks a service of its own, say Ray's, which may be gone before the worker is. That must
# end neither the thread that reports the loss nor the one that watches all workers.


def _is_alive(launched: Launched) -> bool:
    """Returns whether a worker runs, as far as its launcher knows: else its silence decides."""
    try:
        return launched.is_alive()
    except Exception:
        return True


def _last_words(launched: Launched) -> str:
    """Waits a moment for how a worker ended: what it says is better than that it was killed."""
    try:
        launched.wait(STATUS_TIMEOUT)
        return launched.last_words()
    except Exception as error:
        return f"how it ended is not known: {type(error).__name__}: {error}"


def _kill(launched: Launched) -> None:
    with suppress(Exception):
        launched.kill()
