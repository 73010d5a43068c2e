"""Simulates a worker on a slow link: after hello it sends one frame for seconds, then answers
pings.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass

import torch

from katz_graph.executor.launch.base import hello
from katz_graph.executor.launch.in_process import WorkerThread
from katz_graph.executor.transport.connection import Connection
from katz_graph.ipc.heartbeat import Pong, Stop


@dataclass(frozen=True)
class SlowLauncher:
    seconds: float

    in_process = False
    any_device = False

    def launch(self, name: str, background: bool = False) -> WorkerThread:
        ours, raw = socket.socketpair()
        theirs = Connection(raw.dup())
        return WorkerThread(name, Connection(ours), theirs, lambda: self._serve(theirs, raw))

    def _serve(self, connection: Connection, raw: socket.socket) -> None:
        with raw:
            connection.send(hello())
            writer, reader = socket.socketpair()
            with writer, reader:
                sender = threading.Thread(
                    target=Connection(writer).send, args=(("picture", torch.zeros(1000)),)
                )
                sender.start()
                sender.join()
                frame = reader.recv(1 << 16)
            for start in range(0, len(frame), 200):
                raw.sendall(frame[start : start + 200])
                time.sleep(self.seconds * 200 / len(frame))
            while not isinstance(connection.receive(), Stop):
                connection.send(Pong())
