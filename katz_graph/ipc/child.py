"""Starts processes in separate sessions, forwards their output, and kills whole sessions."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from katz_graph.settings.environment import environment_of_children

PYTHON = (sys.executable, "-P", "-u", "-X", "faulthandler")
MAX_LINES = 20
LAST_WORDS = 1.0  # seconds
LONGEST_LINE = 10_000  # characters; longer lines are split


def start_child(
    command: Sequence[str],
    kind: socket.SocketKind = socket.SOCK_STREAM,
    inherited: Sequence[int] = (),
    stdout: int = subprocess.DEVNULL,
    stderr: int | None = None,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a process in a separate session, unaffected by Ctrl-C, connected by a socket.

    Returns our end; the child's descriptor is the last argument of its command line. Raises OSError
    if it cannot be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    with theirs:
        try:
            process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[theirs.fileno(), *inherited],
                start_new_session=True,
                env=environment_of_children(),
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def kill_session(leader: int) -> None:
    """Kills all processes of a session. Its id is not reused while one of them lives."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """Describes an exit status, or a negative signal number, in words."""
    return f"exit status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


class ChildOutput:
    """Forwards the lines that a process prints, from a thread, and stores the last ones."""

    def __init__(self, output: IO[str], echo: Callable[[str], None], name: str) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_LINES)
        work = (output, echo)
        self._thread = threading.Thread(
            None, self._pass_on, f"katz-output-{name}", work, daemon=True
        )
        self._thread.start()

    def join(self) -> None:
        """Waits until all output is read, at most LAST_WORDS: other processes may hold the pipe
        open.
        """
        self._thread.join(LAST_WORDS)

    def after(self, ending: str) -> str:
        """Appends the last line that the process printed to `ending`, which describes its end."""
        last = next((line.strip() for line in reversed(list(self._lines)) if line.strip()), "")
        return f"{ending}; it last printed: {last}" if last else ending

    def _pass_on(self, output: IO[str], echo: Callable[[str], None]) -> None:
        with output:
            while line := output.readline(LONGEST_LINE):
                self._lines.append(line)
                echo(line)
