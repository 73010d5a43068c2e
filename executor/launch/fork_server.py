"""Starts a process on this host that loads the workers' libraries once, then forks workers, which
start immediately and share its memory.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from io import TextIOWrapper
from typing import IO, Self

from katz_graph.core.phases import Phase
from katz_graph.ipc.child import PYTHON, ChildOutput, kill_session, start_child

MODULE = "katz_graph.executor.launch.work"
"""Imports everything that a worker needs, which takes seconds."""
ENTRY = f"{MODULE}:work"
"""Serves a connection."""
ENTRY_ON_GPU = f"{MODULE}:work_on_gpu"
"""Serves a connection after initialising CUDA."""

MAIN = "katz_graph.executor.launch.fork_main"
MAX_MESSAGE_BYTES = 1 << 12  # bytes of a message
EARLY = b"early "
"""Precedes the entry of a process that needs only torch."""
POLL_INTERVAL_S = 0.005
EXIT_TIMEOUT_S = 2.0  # seconds for a process to end after its last connection ended


class ForkServer:
    """Forks processes that compute with `threads`. The server has loaded `module`, and runs from
    `begin` or the first `fork` to `close`. A context manager.

    `prefix`: a command prefix such as `ip netns exec a`, which also applies to forks. `control`: a
    connection to another process's fork server; that server ends when its last connection does.
    `echo` gets the lines that the server prints while loading. Any thread may call. If the server
    is lost, its forks continue and a new server starts.
    """

    def __init__(
        self,
        threads: int = 1,
        module: str = MODULE,
        prefix: Sequence[str] = (),
        control: socket.socket | None = None,
        echo: Callable[[str], None] | None = None,
    ) -> None:
        self.threads = threads
        self._module, self._prefix = module, prefix
        self._echo = echo
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control = control

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self) -> int:
        """Starts the fork server unless it is running. Returns the descriptor of the connection to
        it, which a child may inherit. Raises OSError if the process cannot be started.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self._end()
            return (self._control or self._start()).fileno()

    def fork(self, entry: str) -> Forked:
        """Forks a process that runs `entry` (module:function) when loading has finished. The
        process ends with the connection. It has a separate session, so that Ctrl-C reaches only the
        driver. Raises OSError if it cannot be created.
        """
        return self._requested(entry)

    def fork_early(self, entry: str) -> Forked:
        """Forks a process when torch is loaded, before the other libraries are if `fork_early` is
        called first. It calls `entry` with its connection, and with a connection to this fork
        server. Raises OSError if it cannot be created.
        """
        return self._requested(entry, early=True)

    def close(self) -> None:
        """Ends the fork server. Its forks continue, but their exit status is no longer reported."""
        with self._lock:
            self._end()

    def _requested(self, entry: str, early: bool = False) -> Forked:
        with ExitStack() as ours, ExitStack() as theirs:
            connected, its_end = _pair(ours, theirs, socket.SOCK_STREAM)
            life, its_life = _pair(ours, theirs, socket.SOCK_SEQPACKET)
            reading, writing = os.pipe()
            output = ours.enter_context(os.fdopen(reading, errors="replace"))
            theirs.callback(os.close, writing)
            self._ask(entry, [its_end.fileno(), writing, its_life.fileno()], early)
            ours.pop_all()
            return Forked(connected, output, life)

    def _ask(self, entry: str, descriptors: Sequence[int], early: bool) -> None:
        def send(control: socket.socket) -> None:
            kind, more = (EARLY, (control.fileno(),)) if early else (b"", ())
            socket.send_fds(control, [kind + entry.encode()], (*descriptors, *more))

        with self._lock:
            if self._control is not None:
                with suppress(OSError):
                    return send(self._control)
            self._end()
            send(self._start())

    def _start(self) -> socket.socket:
        echo = self._echo
        command = [*self._prefix, *PYTHON, "-m", MAIN, str(self.threads), self._module]
        stderr = None if echo is None else subprocess.PIPE
        self._process, self._control = start_child(command, socket.SOCK_SEQPACKET, stderr=stderr)
        if echo is not None and self._process.stderr is not None:
            printed = TextIOWrapper(self._process.stderr, errors="replace")
            ChildOutput(printed, lambda line: echo(line.rstrip("\n")), "forks")
        return self._control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class Forked:
    """Controls a forked process: the driver's end of its connection, its output and its state.

    The PID is not reused before `release`, which lets the server reap the process.
    """

    def __init__(self, connected: socket.socket, output: IO[str], life: socket.socket) -> None:
        self.connected, self.output = connected, output
        self._life, self._lock = life, threading.Lock()
        life.setblocking(False)
        self._pid: int | None = None
        self._phases: Sequence[Phase] = ()
        self._code: int | None = None
        self._is_over = False

    @property
    def pid(self) -> int | None:
        """Returns the process id; None while the server is still loading."""
        with self._lock:
            self._look()
            return self._pid

    @property
    def phases(self) -> Sequence[Phase]:
        """Returns the phases in which the server loaded its libraries."""
        with self._lock:
            self._look()
            return self._phases

    @property
    def code(self) -> int | None:
        """Returns the exit status, or the negative number of the killing signal; None before the
        end, and if the server was lost.
        """
        with self._lock:
            self._look()
            return self._code

    @property
    def is_over(self) -> bool:
        """Returns whether the process ended, could not be created, or lost its server."""
        with self._lock:
            self._look()
            return self._is_over

    def wait(self, seconds: float) -> bool:
        """Waits until the process ends; returns whether it has."""
        deadline = time.monotonic() + seconds
        while not self.is_over:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_INTERVAL_S)
        return True

    def kill(self) -> None:
        """Kills the process and its session, or cancels a pending fork. Does not wait."""
        with self._lock:
            if self._life.fileno() < 0:
                return
            self._look()
            if self._pid is None:
                self._release()
            # otherwise the PID may have been reused
            elif self._code is not None or not self._is_over:
                kill_session(self._pid)

    def release(self) -> None:
        """Lets the server reap the process, killing it if it runs."""
        with self._lock:
            self._look()
            self._release()

    def _release(self) -> None:
        self._is_over = True
        self._life.close()

    def _look(self) -> None:
        """Reads messages of the server: the PID and its phases, then the exit status. The caller
        holds the lock.
        """
        while True:
            try:
                reported = self._life.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:  # the server is lost, or the process was released
                reported = b""
            if not reported:
                self._is_over = True
                return
            if self._pid is None:
                self._pid, rows = json.loads(reported)
                self._phases = [Phase(*row) for row in rows]
            else:
                self._code, self._is_over = int(reported), True


def _pair(
    ours: ExitStack, theirs: ExitStack, kind: socket.SocketKind
) -> tuple[socket.socket, socket.socket]:
    here, there = socket.socketpair(socket.AF_UNIX, kind)
    return ours.enter_context(here), theirs.enter_context(there)


def entry_for(device: str) -> str:
    """Returns the entry for a device; `device` is a torch name."""
    return ENTRY_ON_GPU if device.startswith("cuda") else ENTRY
