"""Moves the tensors of messages between two workers. The connection carries the headers and so
defines the order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from katz_graph.executor.transport.codec import Encoded, ProtocolError, as_bytes
from katz_graph.executor.transport.connection import Connection, Message

Transfer = Callable[[], None]
"""Sends a taken message. Raises Closed if the peer is disconnected."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Describes one end of a connection for opening a transport. `hosts`: whether this end hosts
    the rendezvous; exactly one does. `address`: the address at which the peer reaches this end.
    `device`: the compute device of this end.
    """

    hosts: bool
    address: str
    generation: int
    device: torch.device


class Bulk(Protocol):
    """Moves tensors in both directions between two workers.

    `take` returns a transfer that sends the message. If `slow`, `take` copies the tensors, and a
    thread of `Peer` runs the transfer. Otherwise the transfer copies them, so the caller must run
    it immediately. `receive` returns the header and the flat buffers for `decode`; raises
    ProtocolError or Closed if it cannot.
    """

    slow: bool

    def take(self, connection: Connection, encoded: Encoded) -> Transfer: ...

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]: ...

    def close(self) -> None:
        """Wakes up blocked senders and receivers. Nothing can be sent afterwards."""


class Inline:
    """Sends tensors inside the messages, for links without another transport and for small
    tensors.
    """

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
    """Returns the fields of a message of the given kind and field types. Raises ProtocolError for
    any other message.
    """
    match message.body:
        case (str(got), *values) if (got, *map(type, values)) == (kind, *types):
            return values
    raise ProtocolError(f"a message is not the expected {kind!r}, or has other fields")
