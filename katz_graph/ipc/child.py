"""Starts child processes in sessions of their own, passes on what they print, and kills them with all that they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from katz_graph.settings import environment_of_children

PYTHON = (sys.executable, "-P", "-u", "-X", "faulthandler")
KEPT_LINES = 20
LAST_WORDS = 1.0  # seconds to read what a process had printed, which what it started may go on with
LONGEST_LINE = 10_000  # characters; of a longer line each piece counts as one


def start_child(
    command: Sequence[str],
    descriptors: Sequence[int],
    stdout: int = subprocess.DEVNULL,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that inherits `descriptors`; its own session keeps Ctrl-C from it. OSError when it cannot be started."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=descriptors,
        start_new_session=True,
        env=environment_of_children(),
    )


def kill_session(leader: int) -> None:
    """Kill a process that leads a session, with all others there. Its number is its own until it is collected, and soon after."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """An exit status, or the signal that killed as a negative number, in words."""
    return f"exit status {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


class Output:
    """Passes on, from a thread, the lines that a process prints, with their ends; keeps the last of them."""

    def __init__(self, output: IO[str], echo: Callable[[str], None], name: str) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._pass_on, args=(output, echo), name=f"katz-output-{name}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def after(self, ending: str) -> str:
        """How a process ended, followed by the last that it printed."""
        last = next((line.strip() for line in reversed(list(self._lines)) if line.strip()), "")
        return f"{ending}; it last printed: {last}" if last else ending

    def _pass_on(self, output: IO[str], echo: Callable[[str], None]) -> None:
        with output:
            while line := output.readline(LONGEST_LINE):
                self._lines.append(line)
                echo(line)
