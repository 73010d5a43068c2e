"""Decides from headers whether to answer a request: by the server's names, the allowed origins, and
the token. Must not know routes.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from katz_graph.core.errors import InputError
from katz_graph.core.messages import show
from katz_graph.web.options import ServeOptions

COOKIE = "katz_token"
HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(?::([0-9]{1,5}))?")
ORIGIN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.+)")
PORTS = {"http": 80, "https": 443}
SECURE = {"ws": "http", "wss": "https"}  # maps a websocket's scheme to that of its page
# Sec-Fetch-Site of this server's pages, and of an address that a user typed
OWN_PAGES = ("same-origin", "none")
KNOWN = "katz.known"
"""The scope key that marks a request whose host, origin and token were accepted."""
OPEN = re.compile(r"(/api)?/(livez|readyz)")  # for health checks without a token
JSON = "application/json"
MULTIPART = "multipart/form-data"
PNG = "image/png"
PROMPT = re.compile(r"(/api)?/prompt")

Origin = tuple[str, str, int]  # scheme, name, port


@dataclass(frozen=True, slots=True)
class Access:
    """Holds the names, origins and token that requests are checked against.

    `addresses`: any IP address counts as a name of this server, because no page can rebind an
    address to another server. `origins`: other allowed origins.
    """

    names: frozenset[str]
    addresses: bool
    origins: frozenset[Origin]
    token: str | None

    @classmethod
    def of(cls, options: ServeOptions) -> Access:
        """Reads the operator's options. A server bound to loopback accepts loopback names; any
        other server also accepts its addresses and this machine's name.

        Raises InputError for an invalid allowed host or origin.
        """
        loopback = is_loopback(options.host)
        own = (
            {options.host, "localhost"}
            if loopback
            else {options.host, "localhost", socket.gethostname()}
        )
        return cls(
            names=frozenset((*map(_folded, own), *map(_allowed_host, options.allowed_hosts))),
            addresses=not loopback,
            origins=frozenset(map(_allowed_origin, options.allowed_origins)),
            token=options.token,
        )

    def foreign(self, scheme: str, headers: Headers) -> str | None:
        """Returns the reason why a request's host or origin is refused, or None."""
        hosts = headers.getlist("host")
        host = split_host(hosts[0]) if len(hosts) == 1 else None
        if host is None:
            return "the request has no Host header, or an invalid one"
        if not self._is_own(host[0]):
            return (
                f"this server does not answer to {show(host[0])}; start it with --allowed-host "
                f"{host[0]} to allow it"
            )
        if self.asks_from(headers):
            return None
        sites = headers.getlist("sec-fetch-site")
        origins = headers.getlist("origin")
        if origins:
            scheme = SECURE.get(scheme, scheme)
            own = (scheme, host[0], host[1] or PORTS.get(scheme, 0))
            if len(origins) > 1 or split_origin(origins[0]) != own:
                return (
                    f"pages of {show(origins[0])} may not use this server; start it with "
                    f"--allowed-origin to allow them"
                )
        if any(site not in OWN_PAGES for site in sites):
            return "pages of other sites may not use this server; open its address yourself"
        return None

    def asks_from(self, headers: Headers) -> str | None:
        """Returns the Origin header of a request from another origin that the operator allowed, or
        None.
        """
        origins = headers.getlist("origin")
        return (
            origins[0] if len(origins) == 1 and split_origin(origins[0]) in self.origins else None
        )

    def holds(self, headers: Headers, query: bytes) -> bool:
        """Checks that a request carries the token. `query`: the query string, or empty if the URL
        may not contain the token.
        """
        if self.token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        proofs = [given.strip()] if scheme.lower() == "bearer" else []
        proofs += [*_cookies(headers), *parse_qs(query.decode("latin-1")).get("token", [])]
        return any(_same(proof, self.token) for proof in proofs)

    def _is_own(self, name: str) -> bool:
        return name in self.names or (
            _is_address(name) and (self.addresses or ipaddress.ip_address(name).is_loopback)
        )


def is_loopback(host: str) -> bool:
    """Returns whether a listening address is reachable only from this machine."""
    name = _folded(host)
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def origin_of(request: HTTPConnection) -> str:
    """Returns the client's address for limits and turns. An IPv6 /64 network is one address,
    because its holder can use any address in it.
    """
    host = request.client.host if request.client is not None else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        elif not address.is_loopback:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return "loopback" if address.is_loopback else str(address)


def split_host(host: str) -> tuple[str, int | None] | None:
    """Splits a Host header into name (lower case, no brackets) and port; None if malformed."""
    match = HOST.fullmatch(host)
    if match is None or (match[2] and int(match[2]) > 65535):
        return None
    return _folded(match[1]), int(match[2]) if match[2] else None


def split_origin(origin: str) -> Origin | None:
    """Splits an Origin header into scheme, name and port; None for `null` and malformed ones."""
    match = ORIGIN.fullmatch(origin)
    host = split_host(match[2].rstrip("/")) if match else None
    if match is None or host is None:
        return None
    scheme = match[1].lower()
    return scheme, host[0], host[1] or PORTS.get(scheme, 0)


def body_trouble(path: str, headers: Headers) -> str | None:
    """Returns the reason why a page may not send this body; None if it may, or if no page sent it.

    A page on any site can send any body under three content types without a preflight request.
    JSON, PNG and the header Comfy-User (always sent by ComfyUI's editor) require a preflight, which
    only allowed origins pass. Multipart, one of the three, is accepted for uploads.
    """
    if "origin" not in headers and "sec-fetch-site" not in headers:
        return None
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if (
        kind in (JSON, MULTIPART)
        or "comfy-user" in headers
        or (kind == PNG and PROMPT.fullmatch(path))
    ):
        return None
    return (
        f"a page may send {JSON} or {MULTIPART} here, not "
        f"{show(kind) if kind else 'a body without a type'}"
    )


def _allowed_host(host: str) -> str:
    parts = split_host(host)
    if parts is None:
        raise InputError(f"--allowed-host {host}: expected a name, as in pictures.example")
    return parts[0]


def _allowed_origin(origin: str) -> Origin:
    parts = split_origin(origin)
    if parts is None:
        raise InputError(
            f"--allowed-origin {origin}: expected an origin, as in https://pictures.example:8443"
        )
    return parts


def _folded(name: str) -> str:
    return name.strip("[]").lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _cookies(headers: Headers) -> list[str]:
    try:
        return [
            cookie[COOKIE].value
            for cookie in map(SimpleCookie, headers.getlist("cookie"))
            if COOKIE in cookie
        ]
    except CookieError:
        return []


def _same(given: str, token: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())
