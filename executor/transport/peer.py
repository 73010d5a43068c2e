"""Exchanges values with another worker: sends them by address and receives them into the mailbox.
Must not know their meaning.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

from katz_graph.executor.transport.bulk import Bulk, Transfer
from katz_graph.executor.transport.codec import Closed, ProtocolError, decode, encode
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.mailbox import Address, Mailbox

QUEUED = 8  # queue length of a slow link; when full, senders block
SENDER_CHECK_INTERVAL_S = (
    0.1  # seconds between checks for the connection's end while a sender blocks
)
JOIN = 5.0  # seconds to wait for a thread to end


class Peer:
    """Sends values to another worker and receives its values. Calls `on_lost(name, why)` once, from
    the thread that detects the loss, unless this side closed first.

    Values arrive in the order of sending. Tensors arrive on the CPU (or where `bulk` receives) and
    may share memory with the sender's pool.
    """

    def __init__(
        self,
        name: str,
        connection: Connection,
        mailbox: Mailbox,
        bulk: Bulk,
        on_lost: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self._connection = connection
        self._mailbox = mailbox
        self._bulk = bulk
        self._on_lost = on_lost
        self._ended = threading.Event()
        self._ending = threading.Lock()
        # messages pass in the order of `take`: the peer drops a segment before it opens the next
        self._ordering = threading.Lock()
        self._queue: queue.Queue[Transfer | None] = queue.Queue(QUEUED)
        self._threads = [threading.Thread(target=self._receive, name=f"from {name}", daemon=True)]
        if bulk.slow:
            self._threads.append(
                threading.Thread(target=self._send_queued, name=f"to {name}", daemon=True)
            )
        for thread in self._threads:
            thread.start()

    @property
    def ended(self) -> bool:
        """Returns whether the connection has ended: the peer is lost, or this side closed."""
        return self._ended.is_set()

    def send(self, address: Address, value: Any) -> None:
        """Sends a value, which may be modified afterwards, by work enqueued later on a GPU. Blocks
        only for a copy on the host and, if transfers are slow, while the queue (`QUEUED`) is full.

        Raises Closed if the peer is disconnected, TypeError if the value cannot be sent, RunError
        if shared memory is full.
        """
        if self._ended.is_set():
            raise Closed(f"the connection with {self.name} has ended")
        encoded = encode([address, value])
        with self._ordering:
            transfer = self._bulk.take(self._connection, encoded)
            if self._bulk.slow:
                return self._enqueue(transfer)
            try:
                transfer()
            except Closed as error:
                self._lose(str(error) or type(error).__name__)
                raise

    def _enqueue(self, transfer: Transfer) -> None:
        while not self._ended.is_set():
            try:
                return self._queue.put(transfer, timeout=SENDER_CHECK_INTERVAL_S)
            except queue.Full:
                continue
        raise Closed(f"the connection with {self.name} has ended")

    def close(self) -> None:
        """Ends the connection and the threads. Queued values may be lost. Does not call
        `on_lost`.
        """
        self._end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(JOIN)
        self._connection.close()

    def _receive(self) -> None:
        try:
            while True:
                header, buffers = self._bulk.receive(self._connection.receive_message())
                match decode(header, buffers):
                    case [Address() as address, value]:
                        self._mailbox.put(address, value)
                    case _:
                        raise ProtocolError("a message has no address")
                del header, buffers, value  # release the message before waiting for the next
        except Exception as error:  # without a report, others would wait forever
            self._lose(str(error) or type(error).__name__)

    def _send_queued(self) -> None:
        try:
            while (transfer := self._queue.get()) is not None:
                transfer()
                del transfer
        except Exception as error:
            self._lose(str(error) or type(error).__name__)

    def _lose(self, why: str) -> None:
        if self._end():
            with contextlib.suppress(Closed):  # the driver may be disconnected as well
                self._on_lost(self.name, why)

    def _end(self) -> bool:
        """Stops all traffic. Returns True the first time."""
        with self._ending:
            if self._ended.is_set():
                return False
            self._ended.set()
        self._connection.shut_down()
        self._bulk.close()
        if self._bulk.slow:
            self._wake_sender()
        return True

    def _wake_sender(self) -> None:
        """Empties the queue and adds the end marker."""
        while True:
            try:
                return self._queue.put_nowait(None)
            except queue.Full:
                try:
                    self._queue.get_nowait()
                except queue.Empty:
                    continue
