"""Starts workers as threads instead of processes. The threads are supervised and replaced like
processes, and receive all messages over a socket.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from katz_graph.executor.launch.in_process import WorkerThread
from katz_graph.executor.launch.work import work
from katz_graph.executor.transport.connection import Connection


@dataclass(frozen=True, slots=True)
class WorkerThreads:
    """Starts worker threads; each runs `entry` on its end of the connection."""

    entry: Callable[[Connection], None] = work

    in_process = False
    any_device = False

    def launch(self, name: str, background: bool = False) -> WorkerThread:
        ours, theirs = map(Connection, socket.socketpair())
        return WorkerThread(name, ours, theirs, partial(self.entry, theirs))
