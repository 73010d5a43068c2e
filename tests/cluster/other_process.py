"""Starts the other process of the transport tests, and inspects the resources that processes
hold.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import eventually

from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.mailbox import Address, Mailbox
from katz_graph.executor.transport.peer import Peer


class Other:
    """Runs a process, forked from `server`, that answers the messages of a Peer."""

    def __init__(self, server: ForkServer) -> None:
        self._process = server.fork("other_side:serve")
        self.control = Connection(self._process.connected)
        ready, self.pid = self.control.receive()
        assert ready == "ready" and self.pid == self._process.pid

    def connect(self, kind: str, body: Any, make_bulk: Callable[[Connection], Any]) -> End:
        """Connects a peer in this process with one in the other process."""
        ours, theirs = socket.socketpair()
        self.control.send((kind, body), [theirs.fileno()])
        theirs.close()
        connection = Connection(ours)
        return End(connection, make_bulk(connection))

    def close(self) -> None:
        self._process.kill()
        eventually(lambda: self._process.is_over, 20)
        self._process.release()
        self._process.output.close()
        self.control.close()


class End:
    """Records what this process's peer receives, and when and why the peer is lost."""

    def __init__(self, connection: Connection, bulk: Any) -> None:
        self.lost: list[float] = []
        self.reasons: list[str] = []
        self._came = threading.Event()
        self.mailbox = Mailbox(self._came.set)
        self.bulk = bulk
        self.peer = Peer("other", connection, self.mailbox, bulk, self._was_lost)

    def _was_lost(self, name: str, why: str) -> None:
        self.reasons.append(why)
        self.lost.append(time.monotonic())

    def send(self, operation: str, value: Any, evaluation: int | None = None) -> None:
        self.peer.send(Address("r", 1, operation, 0, evaluation), value)

    def wait(self, operation: str, evaluation: int | None = None, timeout: float = 20.0) -> Any:
        address, deadline = Address("r", 1, operation, 0, evaluation), time.monotonic() + timeout
        while not self.mailbox.has(address):
            assert not self.lost, f"the peer was lost: {self.reasons}"
            assert time.monotonic() < deadline, f"{address} did not come"
            self._came.wait(0.1)
            self._came.clear()
        return self.mailbox.take(address)

    def lost_within(self, seconds: float) -> bool:
        """Returns whether the peer is lost exactly once within the time."""
        deadline = time.monotonic() + seconds
        while not self.lost and time.monotonic() < deadline:
            time.sleep(0.005)
        return len(self.lost) == 1


def ended_by_the_other(end: End) -> bool:
    """Returns whether the loss was reported because the other end closed the connection, rather
    than by a timeout.
    """
    return any(word in end.reasons[0] for word in ("closed", "reset by peer", "Broken pipe"))


def descriptors_open() -> list[str]:
    """Returns the targets of this process's file descriptors."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.append(str(link.readlink()))
    return found


def memory_files() -> int:
    """Counts the memory files that this process has open or mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return len([name for name in [*descriptors_open(), *maps] if "memfd:katz" in name])
