"""Authenticates connections over TCP, where anybody may knock: both sides prove that they know a
token before anything else is read.

Each side answers the other's random bytes with an HMAC of both; what a side answers says whether it
listens or dials, so that it cannot be echoed. The token keeps strangers out; it does not hide what
is sent: use a private network.
"""

from __future__ import annotations

import hmac
import os
import socket
import time

from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.faults import Closed, ProtocolError

NONCE = 32  # bytes, as many as a SHA-256
TIMEOUT = 10.0  # seconds for all of it


def authenticate(
    connected: socket.socket, token: bytes, listens: bool, timeout: float = TIMEOUT
) -> None:
    """Proves the token to the other side, and has it prove the same. ProtocolError where its token
    is another one, Closed where it ends or says nothing in time.
    """
    deadline = time.monotonic() + timeout
    own = os.urandom(NONCE)
    try:
        connected.settimeout(timeout)
        connected.sendall(own)
        other = _exactly(connected, deadline)
        connected.sendall(_proof(token, listens, own, other))
        proof = _exactly(connected, deadline)
        connected.settimeout(None)
    except OSError as error:
        raise Closed(f"the handshake failed: {error}") from None
    if not hmac.compare_digest(proof, _proof(token, not listens, other, own)):
        raise ProtocolError("the other side does not know the token of this run")


def listen(host: str, port: int = 0) -> socket.socket:
    """Opens a listening socket at one address of this machine; port 0 takes a free one."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def accept(listener: socket.socket, token: bytes, timeout: float = TIMEOUT) -> Connection:
    """Returns the next connection that knows the token; others are turned away. Closed when none
    came in time.
    """
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            connected, _ = listener.accept()
        except OSError as error:
            raise Closed(f"nobody connected: {error}") from None
        try:
            authenticate(connected, token, True, left)
        except (Closed, ProtocolError):
            connected.close()
        else:
            return Connection(connected)
    raise Closed(f"nobody who knows the token connected within {timeout:g} s")


def dial(host: str, port: int, token: bytes, timeout: float = TIMEOUT) -> Connection:
    """Connects to a listener. Closed where there is none, ProtocolError where its token is another
    one.
    """
    try:
        connected = socket.create_connection((host, port), timeout)
    except OSError as error:
        raise Closed(f"{host}:{port} cannot be reached: {error}") from None
    try:
        authenticate(connected, token, False, timeout)
    except (Closed, ProtocolError):
        connected.close()
        raise
    return Connection(connected)


def _proof(token: bytes, listens: bool, own: bytes, other: bytes) -> bytes:
    return hmac.digest(token, (b"listens" if listens else b"dials") + own + other, "sha256")


def _exactly(connected: socket.socket, deadline: float) -> bytes:
    read = bytearray()
    while len(read) < NONCE:
        connected.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connected.recv(NONCE - len(read))
        if not part:
            raise Closed("the other side closed the connection")
        read += part
    return bytes(read)
