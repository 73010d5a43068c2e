"""Starts workers as threads of this process, with the same messages as elsewhere. They share its
interpreter lock and its death.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from katz_graph.executor.launch.work import work
from katz_graph.executor.transport.connection import Connection


@dataclass(frozen=True, slots=True)
class InProcess:
    """Starts worker threads; each runs `entry` on its end of the connection."""

    entry: Callable[[Connection], None] = work

    @property
    def any_device(self) -> bool:
        return False  # a thread has nothing to load

    def launch(self, name: str, background: bool = False) -> Thread:
        ours, theirs = socket.socketpair()
        return Thread(name, Connection(ours), Connection(theirs), self.entry)


class Thread:
    """Controls a worker thread; killing it ends its connection, on which it returns after the unit
    that runs.
    """

    def __init__(self, name: str, connection: Connection, theirs: Connection, entry: Callable[[Connection], None]) -> None:
        self.pid = os.getpid()
        self.connection = connection
        self._theirs = theirs
        self._entry = entry
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name=f"katz-worker-{name}", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def kill(self) -> None:
        self._theirs.shut_down()

    def wait(self, timeout: float) -> bool:
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def last_words(self) -> str:
        return "" if self._thread.is_alive() else self._failure or "its thread returned"

    def _run(self) -> None:
        try:
            self._entry(self._theirs)
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._theirs.close()
