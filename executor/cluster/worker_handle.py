"""Manages one worker from launch to end: a thread launches it and reads its messages, another sends
heartbeats. Must not know other workers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from katz_graph.core.phases import Phase
from katz_graph.executor.launch.base import Launched, Launcher, mismatch
from katz_graph.executor.messages import Fault, FromWorker, Hello
from katz_graph.executor.transport.codec import Closed, ProtocolError
from katz_graph.executor.transport.connection import Connection, MessageChannel
from katz_graph.ipc.heartbeat import Heartbeat, Ping, Pong, Stop

State = Literal["starting", "ready", "suspect", "dead"]
STATUS_TIMEOUT = 0.2  # maximum delay of a loss report, in seconds, to find the cause
BURIAL_TIMEOUT = 10.0  # seconds that a killed process may take to release its memory


@dataclass(frozen=True, slots=True)
class WorkerPatience:
    """Sets the timeouts of a worker in seconds, and its limits of replacement."""

    start: float = 120.0  # until it is ready
    ping: float = 0.25  # between pings
    suspect: float = 1.0  # silence until the worker counts as suspect
    frozen: float = 2.5  # silence until it counts as frozen and is ended
    stop: float = 2.0  # to end when asked
    deaths: int = 5  # not replaced after this many deaths within `within`
    within: float = 60.0
    max_failed_starts: int = 2  # not replaced after this many consecutive failures to start


PATIENCE = WorkerPatience()


class WorkerHandle:
    """Launches a worker, reads its messages and watches its heartbeat. Calls `on_ready` and
    `on_message` from its reading thread, then `on_lost` once with the reason.
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        patience: WorkerPatience,
        on_ready: Callable[[WorkerHandle], None],
        on_message: Callable[[WorkerHandle, FromWorker], None],
        on_lost: Callable[[WorkerHandle, str], None],
        background: bool = False,
    ) -> None:
        self.name = name
        self.launcher = launcher
        self.connection: MessageChannel | None = None
        self.was_ready = False
        self._patience = patience
        self._on_ready, self._on_message, self._on_lost = on_ready, on_message, on_lost
        self._background = background
        self._burial = threading.TIMEOUT_MAX if launcher.in_process else BURIAL_TIMEOUT
        self._launched: Launched | None = None
        self.phases: Sequence[Phase] = ()  # of its start, when it is ready
        self._is_over = False
        self._lock = threading.Lock()
        self._reason = ""  # why this process ended the worker
        self._stopping = threading.Event()
        self._unanswered = False
        self._pinging = self._obeying = False
        self._moved: tuple[int, int] = (0, 0)
        # measures the start time until the worker is ready
        self._heartbeat = Heartbeat(patience.ping)
        self._pinger = threading.Thread(target=self._ping, name=f"katz-ping-{name}", daemon=True)
        self._thread = threading.Thread(target=self._live, name=f"katz-reader-{name}", daemon=True)

    def start(self) -> None:
        """Launches the worker in a thread. Register the handle first, because Ctrl-C may arrive at
        any time.
        """
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
        """Asks the worker to end. Kills it if it is still starting."""
        if self.state == "starting":
            self.end("it was no longer needed")
        self._stopping.set()

    def end(self, reason: str = "") -> None:
        """Kills the worker. The reading thread cleans up, and determines the reason if none is
        given.
        """
        with self._lock:
            self._reason = self._reason or reason
            launched = self._launched
        if launched is not None:
            _kill(launched)
            launched.connection.shut_down()

    def clean_up(self) -> None:
        """Waits until the worker and its threads have ended. An in-process worker cannot be killed;
        it ends after its running call.
        """
        self.join(self._burial)

    def join(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds. Returns whether the worker and its thread have ended."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Updates the heartbeat; called every `WorkerPatience.ping` seconds. Ends the worker if it
        is silent or starting for too long.

        Received bytes are signs of life, as are bytes sent while a ping waits behind a long
        message. Short sends are not, because a frozen worker's socket still accepts them. A thread
        of this process is not watched, because it cannot freeze alone.
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
                heartbeat.received()
            self._moved = moved
            if heartbeat.silence > self._patience.frozen:
                self.end(f"it did not answer for {heartbeat.silence:.1f} s")
            elif self.state == "suspect" and not _is_alive(launched):
                self.end()

    def _live(self) -> None:
        if self._reason:
            self._is_over = True
            self._on_lost(self, self._reason)
            return
        try:
            launched = self.launcher.launch(self.name, self._background)
        except Exception as error:
            self._is_over = True
            self._on_lost(self, str(error) or type(error).__name__)
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
        self._on_lost(self, self._reason or (f"{reason}: {words}" if words else reason))
        if self._pinger.ident is not None:
            self._pinger.join()
        with suppress(Exception):
            launched.wait(self._burial)
        launched.connection.close()

    def _read(self, connection: MessageChannel) -> str:
        """Handles messages until the connection ends. Returns the reason."""
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
                        self.phases = self._phases_of(hello)
                        self._on_ready(self)
                        self._pinger.start()
                    case _:
                        self._on_message(self, message)
                if isinstance(message, Fault):  # the worker is unusable and has reported why
                    self.end(message.message)
                    return message.message
                del message  # release the message before waiting for the next
                self._obeying = False
        except Closed:
            return "its connection ended"
        except ProtocolError as error:
            return str(error)
        except Exception as error:
            return f"internal error: its message caused {type(error).__name__}: {error}"

    def _phases_of(self, hello: Hello) -> Sequence[Phase]:
        """Returns the phases of this worker's start; none on other hosts, because clocks differ."""
        assert self._launched is not None  # set before its Hello arrived
        if self._launched.pid is None:
            return ()
        return (
            *self._launched.phases,
            *(replace(phase, process=self.name) for phase in hello.phases),
        )

    def _ping(self) -> None:
        connection = self.connection
        assert connection is not None  # set before its Hello arrived
        try:
            while not self._stopping.wait(self._patience.ping):
                if not (self._unanswered or self.launcher.in_process):
                    self._unanswered = self._pinging = True
                    connection.send(Ping())
                    self._pinging = False
            connection.send(Stop())
        except Closed:
            return


# Launchers may depend on an external service such as Ray, which may end before the worker. Errors
# of the service must end neither the thread that reports the loss, nor the thread that watches all
# workers.


def _is_alive(launched: Launched) -> bool:
    """Returns whether a worker is alive according to its launcher. Returns True if the launcher
    fails; then the heartbeat decides.
    """
    try:
        return launched.is_alive()
    except Exception:
        return True


def _last_words(launched: Launched) -> str:
    """Waits briefly for the exit status. Returns the worker's last output or how it ended."""
    try:
        launched.wait(STATUS_TIMEOUT)
        return launched.last_words()
    except Exception as error:
        return f"the reason for its end is unknown: {type(error).__name__}: {error}"


def _kill(launched: Launched) -> None:
    with suppress(Exception):
        launched.kill()
