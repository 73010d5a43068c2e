"""A worker's main loop: messages of the driver on one connection, whatever launched the worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from katz_graph.executor import meeting
from katz_graph.executor.host import Host
from katz_graph.executor.transport.connection import Connection, Message, close_all
from katz_graph.executor.transport.faults import Closed
from katz_graph.executor.transport.shared_memory import SharedMemory
from katz_graph.node import NodeType


def serve(connection: Connection, types: Mapping[str, NodeType]) -> None:
    """Say hello, then do what comes until the connection ends or `stop`. `types`: the nodes that stand inside of regions."""
    host = Host(connection.send, types)
    try:
        connection.send("hello", {"pid": os.getpid()})
        while (message := connection.receive_message()).kind != "stop":
            _obey(host, connection, message)
    except Closed:
        return
    finally:
        host.close()


def _obey(host: Host, connection: Connection, message: Message) -> None:
    body = message.body
    match message.kind:
        case "ping":
            connection.send("pong", body)
        case "assign":
            host.assign(body["assignment"])
            connection.send("assigned", {"name": body["assignment"].name})
        case "connect":
            (descriptor,) = message.descriptors
            host.connect(body["peer"], body["generation"], Connection(socket.socket(fileno=descriptor)), SharedMemory())
        case "listen":
            meeting.listen(connection.send, host.connect, body)
        case "dial":
            meeting.dial(connection.send, host.connect, body)
        case "begin":
            host.begin(body["request"], body["attempt"], body["portion"], body["measure"])
        case "go":
            host.go(body["request"], body["attempt"])
        case "cancel":
            host.cancel(body["request"], body["attempt"])
        case "call":
            host.call(body["id"], body["what"], body["arguments"])
        case _:
            close_all(message.descriptors)
