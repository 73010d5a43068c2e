"""Lists the tensor transports between workers. The driver chooses one for each pair, and both
workers open it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name

from katz_graph.executor.transport.bulk import Bulk, Meeting
from katz_graph.executor.transport.connection import Connection


@dataclass(frozen=True, slots=True)
class Transport:
    """Names the function (module:function of this package) that opens a transport from the
    connection and the meeting. Both ends open it before other messages.

    `one_host`: connects workers on one host, and opens without waiting. Otherwise connects workers
    on different hosts.
    """

    function: str
    one_host: bool = False


TRANSPORTS: Mapping[str, Transport] = {
    "shared memory": Transport("shared_memory:open_bulk", one_host=True),
    "torch.distributed": Transport("pair:open_bulk"),
}
"""The first suitable transport is used."""


def transport_for(one_host: bool) -> str:
    """Returns the name of the transport for two workers on one host, or on several."""
    return next(name for name, transport in TRANSPORTS.items() if transport.one_host == one_host)


def open_bulk(transport: str, connection: Connection, meeting: Meeting) -> Bulk:
    """Opens a transport by name. Raises Closed, ProtocolError or OSError on failure."""
    function = resolve_name(f"katz_graph.executor.transport.{TRANSPORTS[transport].function}")
    bulk: Bulk = function(connection, meeting)
    return bulk
