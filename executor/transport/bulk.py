"""Moves the tensors of messages between two workers. The headers, and with them the order, are the
connection's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from katz_graph.executor.transport.codec import Encoded, as_bytes
from katz_graph.executor.transport.connection import Connection, Message
from katz_graph.executor.transport.faults import ProtocolError

Transfer = Callable[[], None]
"""Sends a message that was taken over. Raises Closed where the other side is gone."""


class Bulk(Protocol):
    """Moves tensors in both directions between two workers.

    `take` makes the message independent of the tensors it was given, unless the transfer that it
    returns is carried out at once; a `slow` one is carried out by a thread of the peer. `receive`
    gives the header and the flat buffers that `decode` wants; it raises ProtocolError or Closed
    where it cannot.
    """

    slow: bool

    def take(self, connection: Connection, encoded: Encoded) -> Transfer: ...

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]: ...

    def close(self) -> None:
        """Wakes up whoever sends or receives; nothing can be sent after."""


class Inline:
    """Sends tensors within the messages: for links with nothing else, and for small tensors."""

    slow = True

    def take(self, connection: Connection, encoded: Encoded) -> Transfer:
        body = [encoded.header, [as_bytes(tensor.cpu()).clone() for tensor in encoded.tensors]]
        return lambda: connection.send("inline", body)

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]:
        header, buffers = fields(message, "inline", bytes, list)
        return header, buffers

    def close(self) -> None:
        pass


def fields(message: Message, kind: str, *types: type) -> Any:
    """Returns the body of a message of this kind, a list of values of these types. ProtocolError
    for any other.
    """
    body = message.body
    if message.kind != kind or not isinstance(body, list) or [type(value) for value in body] != list(types):
        raise ProtocolError(f"a message {message.kind!r} where {kind!r} was expected, or with another body")
    return body
