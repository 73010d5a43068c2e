"""Checks the address that a server listens on, and binds it before anything else is started."""

from __future__ import annotations

import errno
import socket

from katz_graph.errors import InputError
from katz_graph.web.http.access import is_loopback

UNREAD = 60_000  # milliseconds that a peer may leave what was sent to it unread before the system drops its connection (RFC 5482)


def check_reach(host: str, token: str | None) -> None:
    """Raises InputError when others could reach a server that asks for no token."""
    if token is None and not is_loopback(host):
        raise InputError(f"--host {host}: others can reach this address, so a token is needed: --token-file FILE or KATZ_TOKEN")


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket; port 0: any free one. InputError if the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host {host}: no such address: {getattr(error, 'strerror', None) or error}") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD)
        listening.bind(address)
        listening.listen(2048)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"--port {port}: taken by another process on {host}; choose another (0: any that is free)") from None
        if error.errno == errno.EACCES:
            raise InputError(f"--port {port}: only the administrator may listen there; choose one from 1024 on") from None
        raise InputError(f"--host {host}: {error.strerror or error}") from None
    listening.setblocking(False)
    return listening


def url(host: str, port: int) -> str:
    """Writes the address as a browser takes it."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
