"""Fetches files from URLs in a separate process. Network libraries read a file in hundreds of
pieces, and each read in this process would delay computing threads at the GIL.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from katz_graph.core.errors import Cancelled, InputError, RunError
from katz_graph.core.recipe import FileIdentity
from katz_graph.files.urls import shown
from katz_graph.ipc.child import PYTHON, start_child
from katz_graph.ipc.packing import pack, unpack
from katz_graph.models.fetching.fetch import Changed, Patience

MAIN = "katz_graph.models.fetching.fetch_main"
POLL = 0.02  # seconds between two checks of `cancelled`
MAX_MESSAGE_BYTES = 1 << 17  # bytes of a message
TRIES = 2  # like requests with a lost worker
ERRORS = {kind.__name__: kind for kind in (Cancelled, InputError, RunError)}


class Fetcher:
    """Starts the fetch process at the first file; restarts it after a crash. The process fetches
    several files at a time and ends with this process. Any thread may call `fetch`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fetch(
        self,
        folder: Path,
        max_bytes: float,
        patience: Patience,
        file: FileIdentity,
        cancelled: Callable[[], bool],
    ) -> None:
        """Fetches a file to the cache in a folder, unless `cancelled` returns true. Retries with a
        new process after a crash. Raises the errors of `FileCache.fetch_here`, and RunError after
        `TRIES` crashes.
        """
        for _ in range(TRIES):
            if (answer := self._answer(folder, max_bytes, patience, file, cancelled)) is not None:
                return _raise(file, *answer)
        raise RunError(
            f"{shown(file.path)}: could not be fetched: the process that fetches files was lost "
            f"{TRIES} times"
        )

    def _answer(
        self,
        folder: Path,
        max_bytes: float,
        patience: Patience,
        file: FileIdentity,
        cancelled: Callable[[], bool],
    ) -> tuple[str, str, int] | None:
        """Requests a file from the process. Returns (error kind, message, errno); None if the
        process is lost.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with its:
                asked = [str(folder), max_bytes, asdict(patience), asdict(file)]
                self._ask(pack(asked), its.fileno())
            while not select.select([ours], [], [], POLL)[0]:
                if cancelled():
                    raise Cancelled(f"{shown(file.path)}: no longer needed")
            answer = ours.recv(MAX_MESSAGE_BYTES)
        if not answer:
            return None
        kind, message, number = unpack(answer)
        return kind, message, number

    def _ask(self, message: bytes, descriptor: int) -> None:
        with self._lock:
            if self._control is not None:
                with suppress(OSError):
                    socket.send_fds(self._control, [message], [descriptor])
                    return
                self._control.close()
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            command = [*PYTHON, "-m", MAIN]
            self._process, self._control = start_child(command, socket.SOCK_SEQPACKET)
            socket.send_fds(self._control, [message], [descriptor])


FETCHER = Fetcher()


def _raise(file: FileIdentity, kind: str, message: str, number: int) -> None:
    """Raises the error of the other process, if it reported one."""
    if kind == Changed.__name__:
        raise Changed(file.path)
    if kind == OSError.__name__:
        raise OSError(number, os.strerror(number))
    if kind:
        raise ERRORS[kind](message)
