"""Selects the connection to close when a server has too many: by address, with idle unauthenticated
ones first. Must not know the content of requests.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

HEALTH_PLACES = 16  # additional connections for requests of /livez and /readyz


class Connection(Protocol):
    """Lists the fields of a connection that `Places` reads. A connection without them (a websocket)
    is busy.

    `known`: a request on it was authorized. `busy`: it waits for a response. `since`: the time when
    it became idle. `only_health`: it takes one of HEALTH_PLACES.
    """

    transport: Any
    known: bool
    since: float
    only_health: bool

    @property
    def busy(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Places:
    """Limits a server's connections; one address gets at most three quarters of them.

    Over the limit, an idle connection is closed: of the same address if that exceeds its share, or
    else of the address with the most connections. Connections without an authorized request are
    closed first, then those that have been idle longest. If all are busy, the new one gets one of
    HEALTH_PLACES.
    """

    connections: int

    @property
    def of_one_address(self) -> int:
        return max(1, self.connections * 3 // 4)

    def make_room(self, new: Connection, connected: Collection[Any]) -> None:
        """Closes a connection if there are too many; `connected` includes `new`."""
        if len(connected) <= self.of_one_address:
            return  # no limit can be exceeded
        there = [one for one in connected if not one.transport.is_closing()]
        held, mine = Counter(map(_address, there)), _address(new)
        if held[mine] > self.of_one_address:
            crowds = [mine]
        elif len(there) > self.connections:
            crowds = [address for address, count in held.most_common() if count >= held[mine]]
        else:
            return
        idle = (_first_to_leave(there, crowd, new) for crowd in crowds)
        victim = next((one for one in idle if one is not None), None)
        if victim is None:
            new.only_health = True
            watching = [one for one in there if getattr(one, "only_health", False)]
            if len(watching) <= HEALTH_PLACES:
                return
            victim = min(watching, key=lambda one: one.since)
        victim.transport.abort()


def _first_to_leave(connections: Iterable[Any], address: str, new: Connection) -> Any:
    """Returns an address's idle connection to close first, or None if all are busy."""
    idle = [
        one
        for one in connections
        if not getattr(one, "busy", True) and one is not new and _address(one) == address
    ]
    return min(idle, key=lambda one: (one.known, one.since), default=None)


def _address(connection: Any) -> str:
    """Returns the address that a connection counts for: an IPv4 address, or an IPv6 /64 network,
    all addresses of which one client can use.
    """
    peer = connection.transport.get_extra_info("peername")
    if not peer:
        return ""
    try:
        address = ipaddress.ip_address(peer[0].partition("%")[0])
    except ValueError:
        return str(peer[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
