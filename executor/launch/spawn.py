"""Starts workers as processes on this host, connected by a socket pair."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from katz_graph.core.phases import Phase
from katz_graph.executor.launch.fork_server import ENTRY, Forked, ForkServer
from katz_graph.executor.transport.connection import Connection
from katz_graph.ipc.child import ChildOutput, describe_exit


def to_standard_error(line: str) -> None:
    sys.stderr.write(line)


@dataclass(frozen=True, slots=True)
class Spawn:
    """Starts worker processes. `server` creates processes that run `entry`; `echo` gets their
    output.
    """

    server: ForkServer
    entry: str = ENTRY
    echo: Callable[[str], None] = to_standard_error

    in_process = False

    @property
    def any_device(self) -> bool:
        return True

    def launch(self, name: str, background: bool = False) -> WorkerProcess:
        return WorkerProcess(name, self.server.fork(self.entry), self.echo)


class WorkerProcess:
    """Controls a worker process."""

    def __init__(self, name: str, forked: Forked, echo: Callable[[str], None]) -> None:
        self.connection = Connection(forked.connected)
        self._forked = forked
        self._output = ChildOutput(forked.output, echo, name)

    @property
    def pid(self) -> int | None:
        return self._forked.pid

    @property
    def phases(self) -> Sequence[Phase]:
        return self._forked.phases

    def is_alive(self) -> bool:
        return not self._forked.is_over

    def kill(self) -> None:
        """Sends SIGKILL to its whole session, including processes that a pack started."""
        self._forked.kill()

    def wait(self, timeout: float) -> bool:
        if not self._forked.wait(timeout):
            return False
        self._forked.release()  # kills the remaining processes of its session
        self._output.join()
        return True

    def last_words(self) -> str:
        if self.is_alive():
            return ""
        code = self._forked.code
        ending = "its exit status is unknown" if code is None else describe_exit(code)
        return self._output.after(ending)
