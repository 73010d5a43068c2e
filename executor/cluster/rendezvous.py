"""Connects two workers. On one host, the driver passes both ends of a connection; otherwise one
worker listens and the other dials, authenticated by a token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import torch

from katz_graph.executor.messages import Connect, ConnectFailed, Dial, FromWorker, Listen, Listening
from katz_graph.executor.transport import handshake
from katz_graph.executor.transport.bulk import Bulk, Meeting
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.transports import TRANSPORTS, open_bulk

MEETING = 10.0  # timeout of a connection attempt, in seconds
LOOPBACK = "127.0.0.1"

Report = Callable[[FromWorker], None]
Asked = Connect | Listen | Dial


class Member(Protocol):
    """A worker that connects to peers. `device`: its compute device."""

    @property
    def device(self) -> torch.device: ...

    def connect(self, name: str, generation: int, connection: Connection, bulk: Bulk) -> None:
        """Registers the connection to a peer."""


def adopt(report: Report, member: Member, asked: Connect, connection: Connection) -> None:
    """Sets up a passed connection to a peer on this host, in a thread if the transport waits for
    the peer. Reports a failure as `ConnectFailed`.
    """

    def meet() -> None:
        _join(member, asked, connection, asked.hosts, LOOPBACK)

    if TRANSPORTS[asked.transport].waits:
        _in_thread(report, asked, meet)
    else:
        _reporting(report, asked, meet)


def listen(report: Report, member: Member, asked: Listen) -> None:
    """Opens a port at this worker's address, announces it, and waits for the peer in a thread.
    Reports a failure as `ConnectFailed`.
    """

    def meet() -> None:
        with handshake.listen(asked.address) as listener:
            report(Listening(asked.peer, asked.generation, listener.getsockname()[1]))
            connection = handshake.accept(listener, asked.token, MEETING)
        _join(member, asked, connection, True, asked.address)

    _in_thread(report, asked, meet)


def dial(report: Report, member: Member, asked: Dial) -> None:
    """Connects to a listening peer, in a thread. Reports a failure as `ConnectFailed`."""

    def meet() -> None:
        connection = handshake.dial(asked.peer_address, asked.port, asked.token, MEETING)
        _join(member, asked, connection, False, asked.address)

    _in_thread(report, asked, meet)


def _join(member: Member, asked: Asked, connection: Connection, hosts: bool, address: str) -> None:
    meeting = Meeting(hosts, address, asked.generation, member.device)
    try:
        bulk = open_bulk(asked.transport, connection, meeting)
    except Exception:
        connection.close()
        raise
    member.connect(asked.peer, asked.generation, connection, bulk)


def _in_thread(report: Report, asked: Asked, meet: Callable[[], None]) -> None:
    name, arguments = f"meet {asked.peer}", (report, asked, meet)
    threading.Thread(target=_reporting, args=arguments, name=name, daemon=True).start()


def _reporting(report: Report, asked: Asked, meet: Callable[[], None]) -> None:
    try:
        meet()
    except Exception as error:  # without a report, the driver would wait forever
        report(ConnectFailed(asked.peer, asked.generation, str(error) or type(error).__name__))
