"""Queues messages for a connection, so that senders never wait. Must not know their meaning."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Sequence
from typing import Any

from katz_graph.executor.transport.connection import Connection, Frame, close_all


class Outbox:
    """Sends in the order of `send`, from a thread of its own, until the connection ends. Any thread
    may call. A message that cannot be sent whole ends the connection: whoever waits for it would
    wait for ever.

    Two sides that both wait to send, and read nothing meanwhile, would wait for ever; with an
    outbox at one of them they do not.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[tuple[Frame, tuple[int, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="katz-outbox", daemon=True)
        self._thread.start()

    def send(self, kind: str, body: Any = None, descriptors: Sequence[int] = ()) -> None:
        """Queues a message. Descriptors may be closed afterwards. TypeError for a body that cannot
        be sent.
        """
        frame = self._connection.frame(kind, body)
        self._waiting.put((frame, tuple(os.dup(descriptor) for descriptor in descriptors)))

    def close(self) -> None:
        """Sends nothing more after what waits now; what is on its way ends with the connection."""
        self._waiting.put(None)

    def _run(self) -> None:
        gone = False
        while (item := self._waiting.get()) is not None:
            frame, descriptors = item
            try:
                if not gone:
                    self._connection.transmit(frame, descriptors)
            except Exception:  # Closed, or no memory: whoever reads the connection notices
                gone = True
                self._connection.shut_down()
            finally:
                close_all(descriptors)
            del item, frame
