"""Authenticates connections over TCP, where anybody may knock: both sides prove that they know a
token before anything else is read.

Each side answers the other's random bytes with an HMAC of both; what a side answers says whether it
listens or dials, so that it cannot be echoed. The token keeps strangers out; it does not hide what
is sent: use a private network. A listener carries out several handshakes at once, so that a silent
stranger keeps nobody out.
"""

from __future__ import annotations

import hmac
import os
import selectors
import socket
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.faults import Closed, ProtocolError

NONCE = 32  # bytes, as many as a SHA-256
TIMEOUT = 10.0  # seconds until a connection is there
HANDSHAKE_TIMEOUT = 5.0  # seconds of one of several handshakes
MAX_HANDSHAKES = 64  # at once; the oldest makes room for another one
CHECK_INTERVAL = 0.1  # seconds

Exchange = Generator[bytes, bytes, None]
"""Yields what to send, and takes the `NONCE` bytes that the other side sends then."""


def authenticate(
    connected: socket.socket, token: bytes, listens: bool, timeout: float = TIMEOUT
) -> None:
    """Proves the token to the other side, and has it prove the same. ProtocolError where its token
    is another one, Closed where it ends or says nothing in time.
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
    """Opens a listening socket at one address of this machine; port 0 takes a free one."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family)


def accept(
    listener: socket.socket,
    token: bytes,
    timeout: float = TIMEOUT,
    check: Callable[[], object] = lambda: None,
) -> Connection:
    """Returns the first connection whose other side knows the token; turns others away. Closed when
    there is none in time. `check` is called several times a second; its errors end the wait.
    """
    deadline = time.monotonic() + timeout
    handshakes: list[_Handshake] = []  # the oldest first
    listener.setblocking(False)
    try:
        with selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            while (now := time.monotonic()) < deadline:
                check()
                for late in [one for one in handshakes if now > one.deadline]:
                    _turn_away(late, handshakes, ready)
                for key, _ in ready.select(min(CHECK_INTERVAL, deadline - now)):
                    handshake: _Handshake | None = key.data
                    if handshake is None:
                        _begin(listener, token, handshakes, ready)
                    elif handshake in handshakes:  # not turned away meanwhile
                        try:
                            if handshake.advance():
                                handshakes.remove(handshake)
                                return Connection(handshake.connected)
                        except (OSError, Closed, ProtocolError):
                            _turn_away(handshake, handshakes, ready)
        raise Closed(f"nobody who knows the token connected within {timeout:g} s")
    finally:
        for handshake in handshakes:
            handshake.connected.close()


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


@dataclass(slots=True, eq=False)
class _Handshake:
    """Authenticates a connection without waiting for it."""

    connected: socket.socket
    exchange: Exchange
    deadline: float
    received: bytearray = field(default_factory=bytearray)

    def advance(self) -> bool:
        """Reads what has arrived, and answers; returns whether the other side has proved that it
        knows the token. ProtocolError where it does not, Closed or OSError where it has ended.
        """
        part = self.connected.recv(NONCE - len(self.received))
        if not part:
            raise Closed("the other side closed the connection")
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
    """Begins the handshake with whoever connected."""
    try:
        connected, _ = listener.accept()
    except (ConnectionError, BlockingIOError):  # gone again
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
    """Carries out one side of a handshake, whatever moves the bytes. ProtocolError where the other
    side's token is another one.
    """
    own = os.urandom(NONCE)
    other = yield own
    proof = yield _proof(token, listens, own, other)
    if not hmac.compare_digest(proof, _proof(token, not listens, other, own)):
        raise ProtocolError("the other side does not know the token of this run")


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
