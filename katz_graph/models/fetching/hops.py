"""Applies the rule of permitted URLs to redirects and to the addresses of hosts. Must not know the
files.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

from katz_graph.core.errors import KatzError
from katz_graph.files.urls import CHAIN, FetchRule

MAX_HOPS = 10
REDIRECTS = (301, 302, 303, 307, 308)  # RFC 9110, section 15.4
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last 32 bits are an IPv4 address
UNICAST = ipaddress.ip_network("2000::/3")  # RFC 4291, section 2.4: global unicast
WEB = ("http", "https")

Client = Callable[..., Awaitable[Any]]


class NotPermitted(KatzError):
    """Signals a URL forbidden by the rule or by its host's address. Appears only in logs."""


def check_hop(url: str, rule: FetchRule) -> None:
    """Raises NotPermitted for a URL that the rule does not allow, and for a host at a private
    address that the rule does not name. HTTP host names are checked when they are resolved
    (`client_of`).
    """
    if not rule.allows(url):
        raise NotPermitted(f"{_place(url)} begins with no URL that --fetch allows")
    for part in CHAIN.split(url):
        host = urlsplit(part).hostname
        if host is not None and not rule.names(part):
            resolves = urlsplit(url).scheme.lower() in WEB and part == url
            _check_addresses(host, [host] if resolves else _addresses(host))


def redirected(url: str, status: int, location: str | None) -> str | None:
    """Returns the target of a redirect; None for other responses."""
    return urljoin(url, location) if status in REDIRECTS and location else None


def client_of(url: str, rule: FetchRule) -> Client:
    """Returns a factory of sessions that refuse private addresses of the URL's host, unless the
    rule names the URL. Checks the connection's actual address. Connections through a proxy are not
    checked, because only the proxy knows the address.
    """
    from aiohttp import ClientSession, TCPConnector, ThreadedResolver

    asked, named = urlsplit(url).hostname, rule.names(url)

    class Resolver(ThreadedResolver):
        async def resolve(self, host: str, *more: Any, **options: Any) -> Any:
            found = await super().resolve(host, *more, **options)
            if host == asked and not named:
                _check_addresses(host, [entry["host"] for entry in found])
            return found

    async def client(**options: Any) -> ClientSession:
        return ClientSession(connector=TCPConnector(resolver=Resolver()), **options)

    return client


def _addresses(host: str) -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None)]
    except OSError:  # no host, for example a bucket
        return []


def _check_addresses(host: str, addresses: list[str]) -> None:
    for text in addresses:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            continue  # a host name
        if not _is_public(address):
            raise NotPermitted(
                f"{host} is the private address {address}, which no --fetch prefix names"
            )


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return _is_public(inner)
        if address not in UNICAST:
            return False
    return address.is_global and not address.is_multicast


def _place(url: str) -> str:
    """Returns a URL's scheme and host."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}"
