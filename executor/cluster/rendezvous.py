"""Connects two workers where the driver cannot hand them a connection: one listens, the other
dials, both with a token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from katz_graph.executor.transport import handshake, pair
from katz_graph.executor.transport.bulk import Bulk
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.faults import Closed, ProtocolError

MEETING = 10.0  # seconds to meet
TRANSFER = 60.0  # seconds after which a transfer is a fault

Tell = Callable[[str, Mapping[str, Any]], None]
Met = Callable[[str, int, Connection, Bulk], None]
"""(peer, generation, connection, bulk) once two workers are connected."""


def listen(tell: Tell, met: Met, body: Mapping[str, Any]) -> None:
    """Opens a port at this worker's `address`, announces it, and waits for the peer in a thread.
    Reports a failure as `unmet`.
    """

    def meet() -> None:
        with handshake.listen(body["address"]) as listener:
            told = {"peer": body["peer"], "generation": body["generation"]}
            tell("listening", {**told, "port": listener.getsockname()[1]})
            connection = handshake.accept(listener, body["token"], MEETING)
        _join(met, body, connection, hosts=True)

    _in_thread(tell, body, meet)


def dial(tell: Tell, met: Met, body: Mapping[str, Any]) -> None:
    """Connects to the peer that listens, in a thread. Reports a failure as `unmet`."""

    def meet() -> None:
        connection = handshake.dial(body["peer_address"], body["port"], body["token"], MEETING)
        _join(met, body, connection, hosts=False)

    _in_thread(tell, body, meet)


def _join(met: Met, body: Mapping[str, Any], connection: Connection, hosts: bool) -> None:
    try:
        bulk = pair.join(connection, hosts, body["address"], body["generation"], TRANSFER)
    except Exception:
        connection.close()
        raise
    met(body["peer"], body["generation"], connection, bulk)


def _in_thread(tell: Tell, body: Mapping[str, Any], meet: Callable[[], None]) -> None:
    def guarded() -> None:
        try:
            meet()
        except (Closed, ProtocolError, OSError) as error:
            tell("unmet", {"peer": body["peer"], "generation": body["generation"], "message": str(error)})

    threading.Thread(target=guarded, name=f"meet {body['peer']}", daemon=True).start()
