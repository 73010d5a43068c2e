"""Runs a worker's main loop: obeys messages of the driver on one connection, whatever launched the
worker.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from katz_graph.executor.cluster import rendezvous as meeting
from katz_graph.executor.launch.base import hello
from katz_graph.executor.transport.connection import Connection, Message, close_all
from katz_graph.executor.transport.faults import Closed
from katz_graph.executor.transport.outbox import Outbox
from katz_graph.executor.transport.shared_memory import SharedMemory
from katz_graph.executor.worker.host import Host
from katz_graph.node import NodeType


def serve(connection: Connection, types: Mapping[str, NodeType]) -> None:
    """Says hello, then does what comes until the connection ends or `stop`. `types`: the nodes that
    stand inside of regions.
    """
    outbox = Outbox(connection)
    host = Host(outbox.send, types, partial(_give_up, connection, outbox))
    try:
        outbox.send("hello", hello())
        while (message := connection.receive_message()).kind != "stop":
            _obey(host, outbox, message)
    except Closed:
        return
    finally:
        host.close()
        outbox.close()


def _give_up(connection: Connection, outbox: Outbox, why: str, told: Mapping[str, Any]) -> None:
    """Prints why, for the log, and tells the driver, which ends this worker and takes another one.
    Where that cannot be told, the connection ends, and the worker with it.
    """
    print(why, file=sys.stderr, flush=True)
    try:
        outbox.send("fault", {**told, "message": why})
    except Exception:
        connection.shut_down()


def _obey(host: Host, outbox: Outbox, message: Message) -> None:
    body = message.body
    match message.kind:
        case "ping":
            outbox.send("pong", body)
        case "assign":
            host.assign(body["assignment"])
        case "connect":
            (descriptor,) = message.descriptors
            host.connect(body["peer"], body["generation"], Connection(socket.socket(fileno=descriptor)), SharedMemory())
        case "listen":
            meeting.listen(outbox.send, host.connect, body)
        case "dial":
            meeting.dial(outbox.send, host.connect, body)
        case "begin":
            host.begin(body["request"], body["attempt"], body["portion"], body["measure"], body["previews"])
        case "go":
            host.go(body["request"], body["attempt"])
        case "cancel":
            host.cancel(body["request"], body["attempt"])
        case "drop":
            host.drop(body["id"])
        case "call":
            host.call(body["id"], body["what"], body["arguments"])
        case _:
            close_all(message.descriptors)
