"""Passes messages between two threads of one process without encoding or copying."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from typing import Any

from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Message


class DirectConnection:
    """Passes messages at one end of a pair (see `direct_pair`). Sending never blocks, so `sender`
    returns this object. Ignores descriptors.
    """

    def __init__(self, outgoing: queue.SimpleQueue[Any], incoming: queue.SimpleQueue[Any]) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    def send(self, body: Any, descriptors: Sequence[int] = ()) -> None:
        """Passes a message. After the end, the peer does not receive it."""
        self._outgoing.put(body)

    def sender(self) -> DirectConnection:
        return self

    def receive(self) -> Any:
        """Returns the next message. Raises Closed at the end."""
        if (body := self._incoming.get()) is END:
            self._incoming.put(END)
            raise Closed("the peer closed the connection")
        return body

    def receive_message(self) -> Message:
        return Message(self.receive())

    def shut_down(self) -> None:
        """Ends both directions after the queued messages."""
        self._outgoing.put(END)
        self._incoming.put(END)

    def close(self) -> None:
        """Ends both directions; has no other resources to free."""
        self.shut_down()


END = object()  # the last item of a queue


def direct_pair() -> tuple[DirectConnection, DirectConnection]:
    """Returns two connected ends."""
    there: queue.SimpleQueue[Any] = queue.SimpleQueue()
    back: queue.SimpleQueue[Any] = queue.SimpleQueue()
    return DirectConnection(there, back), DirectConnection(back, there)
