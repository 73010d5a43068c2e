"""Worker processes of this host that load what they need while their driver still loads. Imports nothing heavy itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from katz_graph.devices import DeviceList
from katz_graph.executor.processors import claim_seats

MAIN = "katz_graph.executor.launch.worker_main"
ENTRY = "katz_graph.executor.launch.work:work"
"""What a worker runs: a function of its connection. Importing its module loads all that a worker needs."""
ENTRY_ON_GPU = "katz_graph.executor.launch.work:work_on_gpu"
"""The same for a GPU, which has to be initialised."""


def entry_for(device: str) -> str:
    """What a worker on a device runs; `device` as torch calls it."""
    return ENTRY_ON_GPU if device.startswith("cuda") else ENTRY


@dataclass(frozen=True, slots=True)
class Begun:
    """A worker process, and the driver's end of the connection to it."""

    process: subprocess.Popen[str]
    connected: socket.socket


def begin(threads: int, entry: str = ENTRY, prefix: Sequence[str] = (), background: bool = False) -> Begun:
    """Start a worker process; see `Spawn`. It has a session of its own, so that Ctrl-C reaches the driver alone, and ends when the
    connection does. OSError when it cannot be started."""
    ours, theirs = socket.socketpair()
    python = [sys.executable, "-P", "-u", "-X", "faulthandler", "-m", MAIN]
    options = ["--descriptor", str(theirs.fileno()), "--threads", str(threads), "--entry", entry]
    flags = ["--background"] if background else []
    with theirs:
        try:
            process = subprocess.Popen(
                [*prefix, *python, *options, *flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return Begun(process, ours)


class Ahead:
    """Begins a worker for each device that is served by processes of this host. Launchers take them as their own; who is not taken ends
    with `close`. `claimed`: processors that the workers have for themselves."""

    def __init__(self, devices: DeviceList, threads: int) -> None:
        here = [choice.device for choice in devices.choices if devices.launcher == "spawn"]
        self.claimed = claim_seats([threads if device == "cpu" else 0 for device in here])
        self._begun: Mapping[str, deque[Begun]] = {entry_for(device): deque() for device in here}
        with suppress(OSError):  # the launcher finds out as well, and says so
            for entry in map(entry_for, here):
                self._begun[entry].append(begin(threads, entry))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def take(self, entry: str = ENTRY) -> Begun | None:
        """One that nobody has and that runs this; None when there is none left. Any thread may ask."""
        with suppress(IndexError, KeyError):
            return self._begun[entry].popleft()
        return None

    def close(self) -> None:
        """Kill the workers that nobody took."""
        self.claimed.close()
        for begun in (begun for entry in self._begun for begun in iter(partial(self.take, entry), None)):
            with suppress(ProcessLookupError):
                os.killpg(begun.process.pid, signal.SIGKILL)
            begun.connected.close()
            begun.process.wait()
            assert begun.process.stdout is not None
            begun.process.stdout.close()
