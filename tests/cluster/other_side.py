"""Runs the other process of the transport tests: answers values until its connection ends. Forked
by `other_process.py`.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import torch
from device_files import FileAllocator

from katz_graph.executor.transport.bulk import Inline
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.device_memory import LIMIT, DeviceTransport, agreed
from katz_graph.executor.transport.mailbox import Address, Mailbox
from katz_graph.executor.transport.pair import join
from katz_graph.executor.transport.peer import Peer
from katz_graph.executor.transport.shared_memory import SharedMemory


def serve(control: Connection) -> None:
    torch.set_num_threads(1)
    control.send(("ready", os.getpid()))
    came, ended = threading.Condition(), threading.Event()
    addresses: list[Address] = []
    mailbox = Announcing(came, addresses)
    peer = connect(control, mailbox, ended)
    while not ended.is_set():
        with came:
            came.wait_for(lambda: addresses or ended.is_set(), 0.2)
            found = addresses.pop(0) if addresses else None
        if found is not None:
            answer(peer, found, mailbox.take(found))


class Announcing(Mailbox):
    """Reports received values in order."""

    def __init__(self, came: threading.Condition, addresses: list[Address]) -> None:
        super().__init__()
        self._came, self._addresses = came, addresses

    def put(self, address: Address, value: Any) -> None:
        super().put(address, value)
        with self._came:
            self._addresses.append(address)
            self._came.notify()


def connect(control: Connection, mailbox: Mailbox, ended: threading.Event) -> Peer:
    message = control.receive_message()
    kind, body = message.body
    connection = Connection(socket.socket(fileno=message.descriptors[0]))
    bulks = {
        "shared_memory": lambda: SharedMemory(),
        "inline": lambda: Inline(),
        "device": lambda: device_transport(connection, **body),
        "pair": lambda: join(connection, False, **body),
    }
    return Peer("tests", connection, mailbox, bulks[kind](), lambda name, why: ended.set())


def device_transport(connection: Connection, limit: int = LIMIT, **options: Any) -> DeviceTransport:
    """Opens device memory, for which files stand in, with the peer of the connection."""
    return agreed(connection, DeviceTransport(FileAllocator(**options), SharedMemory(), limit))


def answer(peer: Peer, address: Address, value: Any) -> None:
    """Answers `echo` with the value, `size` with the bytes of its tensor, `keep` not at all."""
    if address.operation == "echo":
        peer.send(address, value)
    elif address.operation == "size":
        peer.send(address, value.numel() * value.element_size())
