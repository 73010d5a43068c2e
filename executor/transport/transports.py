"""Lists the tensor transports between workers. The driver chooses one for each pair, and both
workers open it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name

from katz_graph.executor.transport.bulk import Bulk, Meeting
from katz_graph.executor.transport.connection import Connection


@dataclass(frozen=True, slots=True)
class Transport:
    """Names the function (module:function of this package) that opens a transport from the
    connection and the meeting. Both ends open it before other messages.

    `one_host`: connects workers on one host. Otherwise connects workers on different hosts.
    `device`: the kind of device that both workers need; None: any. `waits`: opening waits for the
    peer.
    """

    function: str
    one_host: bool = False
    device: str | None = None
    waits: bool = True


TRANSPORTS: Mapping[str, Transport] = {
    "CUDA IPC": Transport("device_memory:open_bulk", one_host=True, device="cuda"),
    "shared memory": Transport("shared_memory:open_bulk", one_host=True, waits=False),
    "torch.distributed": Transport("pair:open_bulk"),
}
"""In order of preference."""


def transports_for(one_host: bool, kinds: Collection[str]) -> list[str]:
    """Returns the transports for two workers on one host, or on several, by the kinds of their
    devices. The first is used if it can be opened.
    """
    return [
        name
        for name, transport in TRANSPORTS.items()
        if transport.one_host == one_host
        and (transport.device is None or set(kinds) == {transport.device})
    ]


def open_bulk(transport: str, connection: Connection, meeting: Meeting) -> Bulk:
    """Opens a transport by name. Raises Closed, ProtocolError or OSError on failure."""
    function = resolve_name(f"katz_graph.executor.transport.{TRANSPORTS[transport].function}")
    bulk: Bulk = function(connection, meeting)
    return bulk
