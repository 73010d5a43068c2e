"""Moves the tensors of messages between two workers. The headers, and with them the order, are the
connection's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from katz_graph.executor.transport.codec import Encoded, as_bytes
from katz_graph.executor.transport.connection import Connection, Message
from katz_graph.executor.transport.faults import ProtocolError

Transfer = Callable[[], None]
"""Sends a message that was taken over. Raises Closed where the other side is gone."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Describes one end of a connection that is to get a transport: one of the two ends `hosts`;
    `address` is where the other one reaches this one, `device` what this one computes on.
    """

    hosts: bool
    address: str
    generation: int
    device: torch.device


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
        body = (
            "inline",
            encoded.header,
            [as_bytes(tensor.cpu()).clone() for tensor in encoded.tensors],
        )
        return lambda: connection.send(body)

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]:
        header, buffers = fields(message, "inline", bytes, list)
        return header, buffers

    def close(self) -> None:
        pass


def fields(message: Message, kind: str, *types: type) -> Any:
    """Returns the fields of a message of this kind, values of these types. ProtocolError for any
    other.
    """
    match message.body:
        case (str(got), *values) if (got, *map(type, values)) == (kind, *types):
            return values
    raise ProtocolError(f"a message that is no {kind!r}, which was expected, or has other fields")
