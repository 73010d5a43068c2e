"""Decides which connections a server keeps when there are too many: by address, and idle ones that
showed nothing first. Must not know what is asked.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

HEALTH_PLACES = 16  # beyond those of clients, for requests of /livez and /readyz


class Connection(Protocol):
    """A connection as it is judged here; one without these fields (a websocket) is busy.

    `known`: a request on it was let in. `busy`: it waits for an answer. `since`: the time from
    which on it is idle. `only_health`: it takes one of HEALTH_PLACES.
    """

    transport: Any
    known: bool
    since: float
    only_health: bool

    @property
    def busy(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Places:
    """Holds the number of connections that a server takes; one address has at most three quarters
    of them.

    Where one more is too many, an idle connection leaves: of the same address where that has too
    many, else of the address that has most. Those on which no request was let in leave first, then
    those that are idle for longest. Where all are busy, the new one gets one of HEALTH_PLACES.
    """

    connections: int

    @property
    def of_one_address(self) -> int:
        return max(1, self.connections * 3 // 4)

    def make_room(self, new: Connection, connected: Collection[Any]) -> None:
        """Ends a connection where there are too many with `new`, which is among them."""
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
    """Returns the idle connection of an address that leaves before its others; None when all are
    busy.
    """
    idle = [
        one
        for one in connections
        if not getattr(one, "busy", True) and one is not new and _address(one) == address
    ]
    return min(idle, key=lambda one: (one.known, one.since), default=None)


def _address(connection: Any) -> str:
    """Returns whom a connection counts for: an IPv4 address, or a network of IPv6, of which one
    client has as many addresses as it likes.
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
