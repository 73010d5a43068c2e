"""Runs a worker's main loop: executes the driver's messages from one connection, however it was
launched.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from katz_graph.core.phases import Phase
from katz_graph.executor.cluster import rendezvous
from katz_graph.executor.launch.base import hello
from katz_graph.executor.messages import (
    Assign,
    Begin,
    CallService,
    Cancel,
    Connect,
    Dial,
    DropCall,
    Fault,
    Go,
    Listen,
    Prefetch,
    RunEnded,
)
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import (
    Connection,
    Message,
    MessageChannel,
    Sender,
    close_all,
)
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.host import Host
from katz_graph.ipc.heartbeat import Ping, Pong, Stop
from katz_graph.node.types import NodeType


def serve(
    connection: MessageChannel,
    types: Mapping[str, NodeType],
    on_started: Callable[[Host], None] | None = None,
    phases: Sequence[Phase] = (),
) -> None:
    """Sends hello, then handles messages until the connection ends or `Stop` arrives. `types`: node
    types allowed inside step regions; `on_started` gets the device's host.
    """
    sender = connection.sender()
    try:
        sender.send(hello(phases))
        if (config := _assigned(connection, sender)) is None:
            return
        host = Host(config, sender.send, types, partial(_give_up, connection, sender))
        if on_started is not None:
            on_started(host)
        try:
            while not isinstance((message := connection.receive_message()).body, Stop):
                _obey(host, sender, message)
        finally:
            host.close()
    except Closed:
        return
    finally:
        sender.close()


def _assigned(connection: MessageChannel, sender: Sender) -> WorkerConfig | None:
    """Answers pings until the worker is assigned a device; returns None if it is stopped first."""
    while not isinstance(message := connection.receive(), Assign | Stop):
        sender.send(Pong())
    return message.config if isinstance(message, Assign) else None


def _give_up(connection: MessageChannel, sender: Sender, fault: Fault) -> None:
    """Logs the fault and reports it to the driver, which replaces this worker. If the report cannot
    be sent, shuts down the connection, which ends the worker.
    """
    print(fault.message, file=sys.stderr, flush=True)
    try:
        sender.send(fault)
    except Exception:
        connection.shut_down()


def _obey(host: Host, sender: Sender, message: Message) -> None:
    match message.body:
        case Ping():
            sender.send(Pong())
        case Connect() as connect:
            (descriptor,) = message.descriptors
            connection = Connection(socket.socket(fileno=descriptor))
            rendezvous.adopt(sender.send, host, connect, connection)
        case Listen() as listen:
            rendezvous.listen(sender.send, host, listen)
        case Dial() as dial:
            rendezvous.dial(sender.send, host, dial)
        case Begin() as begin:
            host.begin(begin)
        case Go() as go:
            host.go(go)
        case Cancel() as cancel:
            host.cancel(cancel)
        case CallService() as call:
            host.call(call)
        case DropCall(identifier):
            host.drop(identifier)
        case Prefetch(recipes, arrival):
            host.prefetch(recipes, arrival)
        case RunEnded() as ended:
            host.run_ended(ended)
        case _:
            close_all(message.descriptors)
