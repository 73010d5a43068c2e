"""Moves the tensors of messages between two workers. The connection carries the headers and so
defines the order.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from katz_graph.executor.transport.codec import Closed, Encoded, ProtocolError, as_bytes
from katz_graph.executor.transport.connection import Connection, Message

Transfer = Callable[[], None]
"""Sends a taken message, after the copies of its tensors. Raises Closed if the peer is
disconnected.
"""


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

    `take` copies the tensors and returns a transfer that sends the message. If `slow`, the transfer
    waits, for a network or for a device, and a thread of `Peer` runs it. `receive` returns the
    header and the flat buffers for `decode`; raises ProtocolError or Closed if it cannot.
    `transport`: the name of the transport that moves tensors to the peer.
    """

    @property
    def slow(self) -> bool: ...

    @property
    def transport(self) -> str: ...

    def take(self, connection: Connection, encoded: Encoded) -> Transfer: ...

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]: ...

    def close(self) -> None:
        """Wakes up blocked senders and receivers. Nothing can be sent afterwards."""


class Inline:
    """Sends tensors inside the messages, for links without another transport and for small
    tensors.
    """

    slow = True
    transport = "messages"

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


def awaited(connection: Connection, seconds: float, what: str) -> Message:
    """Waits for a message. Raises Closed if none arrives in time."""
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    if not waiting.poll(seconds * 1000):
        raise Closed(f"the peer sent no {what} within {seconds:g} s")
    return connection.receive_message()
