"""Authenticates TCP connections, which any host may open: both sides prove knowledge of a token
before other data is read.

Each side answers the peer's random bytes with an HMAC of both nonces. The HMAC includes the role,
listener or dialer, so an echoed answer is invalid. The token excludes unknown clients; data is not
encrypted, so use a private network. A listener runs several handshakes concurrently, so that a
silent client does not block others.
"""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from katz_graph.executor.transport.codec import Closed, ProtocolError
from katz_graph.executor.transport.connection import Connection

NONCE = 32  # bytes, the length of a SHA-256 digest
TIMEOUT = 10.0  # seconds to establish a connection
HANDSHAKE_TIMEOUT = 5.0  # seconds of one handshake of several
MAX_HANDSHAKES = 64  # concurrent; the oldest is dropped for a new one
CHECK_INTERVAL = 0.1  # seconds

Exchange = Generator[bytes, bytes, None]
"""Yields the bytes to send, and takes the next `NONCE` bytes of the peer."""


def authenticate(
    connected: socket.socket, token: bytes, listens: bool, timeout: float = TIMEOUT
) -> None:
    """Proves knowledge of the token to the peer, and verifies the peer's. Raises ProtocolError if
    the peer's token differs, Closed if it disconnects or does not answer in time.
    """
    deadline = time.monotonic() + timeout
    exchange = _exchange(token, listens)
    try:
        connected.settimeout(timeout)
        reply = next(exchange)
        while True:
            connected.sendall(reply)
            reply = exchange.send(_exactly(connected, deadline))
    except StopIteration:
        connected.settimeout(None)
    except OSError as error:
        raise Closed(f"the handshake failed: {error}") from None


def listen(host: str, port: int = 0) -> socket.socket:
    """Opens a listening socket at one address of this machine; port 0 selects a free port."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def accept(
    listener: socket.socket,
    token: bytes,
    timeout: float = TIMEOUT,
    check: Callable[[], object] = lambda: None,
) -> Connection:
    """Returns the first connection whose peer knows the token, and rejects others. Raises Closed if
    none arrives in time. Calls `check` several times a second; an error that it raises ends the
    wait.
    """
    deadline = time.monotonic() + timeout
    handshakes: list[_Handshake] = []  # oldest first
    listener.setblocking(False)
    try:
        with selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            while (now := time.monotonic()) < deadline:
                check()
                for expired in [one for one in handshakes if now > one.deadline]:
                    _turn_away(expired, handshakes, ready)
                for key, _ in ready.select(min(CHECK_INTERVAL, deadline - now)):
                    handshake: _Handshake | None = key.data
                    if handshake is None:
                        _begin(listener, token, handshakes, ready)
                    elif handshake in handshakes:  # not dropped for a newer one
                        try:
                            if handshake.advance():
                                handshakes.remove(handshake)
                                return Connection(handshake.connected)
                        except (OSError, Closed, ProtocolError):
                            _turn_away(handshake, handshakes, ready)
        raise Closed(f"no peer with the token connected within {timeout:g} s")
    finally:
        for handshake in handshakes:
            handshake.connected.close()


def dial(host: str, port: int, token: bytes, timeout: float = TIMEOUT) -> Connection:
    """Connects to a listener. Raises Closed if none is reachable, ProtocolError if its token
    differs.
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


@dataclass(slots=True, eq=False)
class _Handshake:
    """Authenticates a connection without blocking."""

    connected: socket.socket
    exchange: Exchange
    deadline: float
    received: bytearray = field(default_factory=bytearray)

    def advance(self) -> bool:
        """Reads received bytes and answers. Returns whether the peer has proved that it knows the
        token. Raises ProtocolError if the proof is wrong, Closed or OSError if the connection
        ended.
        """
        part = self.connected.recv(NONCE - len(self.received))
        if not part:
            raise Closed("the peer closed the connection")
        self.received += part
        if len(self.received) < NONCE:
            return False
        try:
            self.connected.sendall(self.exchange.send(bytes(self.received)))
        except StopIteration:
            return True
        self.received.clear()
        return False


def _begin(
    listener: socket.socket,
    token: bytes,
    handshakes: list[_Handshake],
    ready: selectors.BaseSelector,
) -> None:
    """Accepts a connection and starts its handshake."""
    try:
        connected, _ = listener.accept()
    except (ConnectionError, BlockingIOError):  # already disconnected
        return
    connected.setblocking(False)
    if len(handshakes) == MAX_HANDSHAKES:
        _turn_away(handshakes[0], handshakes, ready)
    exchange = _exchange(token, True)
    handshake = _Handshake(connected, exchange, time.monotonic() + HANDSHAKE_TIMEOUT)
    handshakes.append(handshake)
    ready.register(connected, selectors.EVENT_READ, handshake)
    try:
        connected.sendall(next(exchange))
    except OSError:
        _turn_away(handshake, handshakes, ready)


def _turn_away(
    handshake: _Handshake, handshakes: list[_Handshake], ready: selectors.BaseSelector
) -> None:
    handshakes.remove(handshake)
    ready.unregister(handshake.connected)
    handshake.connected.close()


def _exchange(token: bytes, listens: bool) -> Exchange:
    """Runs one side of a handshake independently of the socket. Raises ProtocolError if the peer's
    token differs.
    """
    own = os.urandom(NONCE)
    other = yield own
    proof = yield _proof(token, listens, own, other)
    if not hmac.compare_digest(proof, _proof(token, not listens, other, own)):
        raise ProtocolError("the peer's token is wrong")


def _proof(token: bytes, listens: bool, own: bytes, other: bytes) -> bytes:
    return hmac.digest(token, (b"listens" if listens else b"dials") + own + other, "sha256")


def _exactly(connected: socket.socket, deadline: float) -> bytes:
    read = bytearray()
    while len(read) < NONCE:
        connected.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connected.recv(NONCE - len(read))
        if not part:
            raise Closed("the peer closed the connection")
        read += part
    return bytes(read)
