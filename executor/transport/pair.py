"""Moves tensors between two workers with torch.distributed: two-rank groups of gloo, without a
world group.

A group belongs to one generation of a connection. When a worker dies, both groups end; the next
generation creates new groups.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, Literal

import torch
from torch import Tensor
from torch._C._distributed_c10d import Backend, PrefixStore, ProcessGroupGloo, Store, TCPStore

from katz_graph.executor.transport.bulk import Inline, Meeting, Transfer, awaited, fields
from katz_graph.executor.transport.coalesce import coalesced, lengths_of, parts, size_of
from katz_graph.executor.transport.codec import Closed, Encoded, ProtocolError
from katz_graph.executor.transport.connection import TENSOR_LIMIT, Connection, Message

# bytes below which gloo's rendezvous takes longer than sending the data inside the message
INLINE = 1 << 20
TRANSFER = 60.0  # seconds after which a transfer fails


class PairGroups:
    """Moves tensors in both directions between two workers, with one group per direction.

    A header on the connection announces every body, so a receive waits only for a body that is
    being sent, and a timeout is a fault that ends the pair. After `close`, an operation pending in
    a group ends when the peer process ends, at the latest at the timeout.
    """

    slow = True
    transport = "torch.distributed"

    def __init__(
        self,
        sending: Backend,
        receiving: Backend,
        rank: int,
        timeout: timedelta,
    ) -> None:
        self._sending = sending
        self._receiving = receiving
        self._other = 1 - rank
        self._timeout = timeout
        self._inline = Inline()

    def take(self, connection: Connection, encoded: Encoded) -> Transfer:
        lengths = lengths_of(encoded.tensors)
        if size_of(lengths) < INLINE:
            return self._inline.take(connection, encoded)
        block = coalesced(encoded.tensors, torch.device("cpu"))

        def transfer() -> None:
            connection.send(("pair", encoded.header, lengths))
            if block.numel():
                self._wait(self._sending, "send", block)

        return transfer

    def receive(self, message: Message) -> tuple[bytes, list[Tensor]]:
        match message.body:
            case ("inline", *_):
                return self._inline.receive(message)
        header, lengths = fields(message, "pair", bytes, list)
        if min(lengths, default=0) < 0 or size_of(lengths) > TENSOR_LIMIT:
            raise ProtocolError(
                f"a message has tensors of {lengths} bytes; {TENSOR_LIMIT} are allowed"
            )
        block = torch.empty(size_of(lengths), dtype=torch.uint8)
        if block.numel():
            self._wait(self._receiving, "recv", block)
        return header, parts(block, lengths)

    def _wait(self, group: Backend, action: Literal["send", "recv"], block: Tensor) -> None:
        try:
            getattr(group, action)([block], self._other, 0).wait(self._timeout)
        except RuntimeError as error:
            raise Closed(f"a transfer of {block.numel()} bytes failed: {error}") from None

    def close(self) -> None:
        for group in (self._sending, self._receiving):
            group.abort()


def open_bulk(connection: Connection, meeting: Meeting) -> PairGroups:
    return join(connection, meeting.hosts, meeting.address, meeting.generation, TRANSFER)


def join(
    connection: Connection,
    hosts: bool,
    address: str,
    generation: int,
    timeout: float,
    interface: str = "",
) -> PairGroups:
    """Creates the groups with the peer of `connection`. Both ends call this before other messages.

    One side `hosts` the rendezvous. `address`: IP address or name at which the peer reaches this
    side; gloo listens there, or on `interface`. `timeout`: seconds for setup, and for each
    transfer. Raises Closed on failure.
    """
    limit = timedelta(seconds=timeout)
    try:
        meeting = _host(connection, address, limit) if hosts else _visit(connection, limit)
        store = PrefixStore(f"pair/{generation}", meeting)
        rank = 0 if hosts else 1
        device_options = {"interface": interface} if interface else {"hostname": address}
        groups = [
            _group(PrefixStore(f"from/{source}", store), rank, limit, device_options)
            for source in (0, 1)
        ]
    except RuntimeError as error:
        raise Closed(f"the group of two processes could not be created: {error}") from None
    return PairGroups(groups[rank], groups[1 - rank], rank, limit)


def _host(connection: Connection, address: str, limit: timedelta) -> Store:
    """Opens a store that listens at this address only, and announces it to the peer."""
    with socket.create_server((address, 0)) as listener:
        port = listener.getsockname()[1]
        store = TCPStore(
            address,
            port,
            None,
            True,
            limit,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    connection.send(("meet", address, port))
    return store


def _visit(connection: Connection, limit: timedelta) -> Store:
    message = awaited(connection, limit.total_seconds(), "rendezvous address")
    address, port = fields(message, "meet", str, int)
    return TCPStore(address, port, None, False, limit, wait_for_workers=False)


def _group(store: Store, rank: int, limit: timedelta, device_options: dict[str, str]) -> Backend:
    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(**device_options)]
    options._timeout = limit
    options._threads = 1
    return ProcessGroupGloo(store, rank, 2, options)
