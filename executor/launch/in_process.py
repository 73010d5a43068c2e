"""Starts a worker as a thread of this process. The worker shares the GIL, and its device faults end
the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial

from katz_graph.executor.transport.connection import MessageChannel
from katz_graph.executor.transport.direct import direct_pair
from katz_graph.executor.worker.host import Host
from katz_graph.executor.worker.main import serve
from katz_graph.node.types import NodeType


class InProcess:
    """Starts the worker of one device in this process. `host`: set once a device is assigned."""

    in_process = True
    any_device = False  # a thread has nothing to load

    def __init__(self) -> None:
        self.host: Host | None = None

    def launch(self, name: str, background: bool = False) -> WorkerThread:
        ours, theirs = direct_pair()
        # every request has a context with the node types of its run
        nodes: Mapping[str, NodeType] = {}
        return WorkerThread(name, ours, theirs, partial(serve, theirs, nodes, self._on_started))

    def _on_started(self, host: Host) -> None:
        self.host = host


class WorkerThread:
    """Controls a worker thread that runs `entry`. `kill` ends its connection; the thread returns
    after its current unit.
    """

    phases = ()

    def __init__(
        self,
        name: str,
        connection: MessageChannel,
        theirs: MessageChannel,
        entry: Callable[[], None],
    ) -> None:
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
            self._entry()
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._theirs.close()
