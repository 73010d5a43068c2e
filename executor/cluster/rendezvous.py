"""Connects two workers where the driver cannot hand them a connection: one listens, the other
dials, both with a token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from katz_graph.executor.messages import ConnectFailed, Dial, FromWorker, Listen, Listening
from katz_graph.executor.transport import handshake, pair
from katz_graph.executor.transport.bulk import Bulk
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.faults import Closed, ProtocolError

MEETING = 10.0  # seconds to meet
TRANSFER = 60.0  # seconds after which a transfer is a fault

Tell = Callable[[FromWorker], None]
Met = Callable[[str, int, Connection, Bulk], None]
"""(peer, generation, connection, bulk) once two workers are connected."""


def listen(tell: Tell, met: Met, asked: Listen) -> None:
    """Opens a port at this worker's address, announces it, and waits for the peer in a thread.
    Reports a failure as `ConnectFailed`.
    """

    def meet() -> None:
        with handshake.listen(asked.address) as listener:
            tell(Listening(asked.peer, asked.generation, listener.getsockname()[1]))
            connection = handshake.accept(listener, asked.token, MEETING)
        _join(met, asked, connection, hosts=True)

    _in_thread(tell, asked, meet)


def dial(tell: Tell, met: Met, asked: Dial) -> None:
    """Connects to the peer that listens, in a thread. Reports a failure as `ConnectFailed`."""

    def meet() -> None:
        connection = handshake.dial(asked.peer_address, asked.port, asked.token, MEETING)
        _join(met, asked, connection, hosts=False)

    _in_thread(tell, asked, meet)


def _join(met: Met, asked: Listen | Dial, connection: Connection, hosts: bool) -> None:
    try:
        bulk = pair.join(connection, hosts, asked.address, asked.generation, TRANSFER)
    except Exception:
        connection.close()
        raise
    met(asked.peer, asked.generation, connection, bulk)


def _in_thread(tell: Tell, asked: Listen | Dial, meet: Callable[[], None]) -> None:
    def guarded() -> None:
        try:
            meet()
        except (Closed, ProtocolError, OSError) as error:
            tell(ConnectFailed(asked.peer, asked.generation, str(error)))

    threading.Thread(target=guarded, name=f"meet {asked.peer}", daemon=True).start()
