"""Workers as processes on this host, connected by a socket pair. Nothing is forked from a process that holds torch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from katz_graph.executor.launch.ahead import ENTRY, Ahead, begin
from katz_graph.executor.transport.connection import Connection

KEPT_LINES = 20


def to_standard_error(line: str) -> None:
    sys.stderr.write(line)


@dataclass(frozen=True, slots=True)
class Spawn:
    """`threads` that a worker computes with; `prefix`: a command that starts it, say `ip netns exec a`; `echo` gets what it prints. `ahead`
    has begun some that are the same, which are taken first."""

    threads: int = 1
    prefix: tuple[str, ...] = ()
    entry: str = ENTRY
    echo: Callable[[str], None] = to_standard_error
    ahead: Ahead | None = None

    @property
    def any_device(self) -> bool:
        return True

    def launch(self, name: str, background: bool = False) -> Process:
        """Take a process that has begun, unless it may wait for others, or start one."""
        begun = None if background or self.ahead is None else self.ahead.take(self.entry)
        begun = begun or begin(self.threads, self.entry, self.prefix, background)
        return Process(name, begun.process, Connection(begun.connected), self.echo)


class Process:
    """A worker process. A thread passes on what it prints and keeps the last lines."""

    def __init__(self, name: str, started: subprocess.Popen[str], connection: Connection, echo: Callable[[str], None]) -> None:
        self.name = name
        self.pid = started.pid
        self.connection = connection
        self._process = started
        self._echo = echo
        self._reaping = threading.Lock()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader = threading.Thread(target=self._pass_on, name=f"katz-output-{name}", daemon=True)
        self._reader.start()

    def is_alive(self) -> bool:
        with self._reaping:
            if self._process.returncode is not None:
                return False
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def kill(self) -> None:
        """SIGKILL to its whole session: a process that a pack started ends with it."""
        with self._reaping:
            if self._process.returncode is None:  # not waited for, so the number still means this session
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self.is_alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        self.kill()  # what it started and left
        with self._reaping:
            self._process.wait()
        self._reader.join(1.0)
        return True

    def last_words(self) -> str:
        code = self._process.returncode
        if code is None:
            return ""
        how = f"exit status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        last = next((line.strip() for line in reversed(list(self._lines)) if line.strip()), "")
        return f"{how}; it last printed: {last}" if last else how

    def _pass_on(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line)
                self._echo(line)
