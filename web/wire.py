"""Messages between the server and the runner: msgpack over a stream socket, one end for threads and one for asyncio. Never pickle.

A message is a kind, a number (an answer bears that of its request) and plain data. Knows nothing of what they mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgpack

from katz_graph.errors import KatzError

LARGEST = 256 * 2**20  # bytes of one message
CHUNK = 2**18  # bytes that arrive at once, at most
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**64 - 1  # what msgpack's integers hold
INTEGER = 1  # the extension that stands for others, in decimal


class WireError(KatzError):
    """What came is no message, or is too large."""


@dataclass(frozen=True, slots=True)
class Message:
    kind: str
    number: int
    body: Any


def packed(kind: str, number: int, body: Any) -> bytes:
    """A message as bytes; tuples arrive as lists. TypeError or ValueError for what is no plain data, or too large."""
    try:
        data = _packed([kind, number, body])
    except OverflowError:
        data = _packed([kind, number, _widened(body)])
    if len(data) > LARGEST:
        raise ValueError(f"{len(data):,} bytes are more than the {LARGEST:,} of a message")
    return data


class Messages:
    """Takes in bytes as they arrive, and gives the messages that are whole."""

    def __init__(self, largest: int = LARGEST + CHUNK) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=largest, ext_hook=_integer, unicode_errors="surrogatepass", strict_map_key=False)

    def take(self, data: bytes) -> Iterator[Message]:
        """WireError when the bytes are not ours."""
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                kind, number, body = message
                yield Message(kind, number, body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise WireError(f"a message cannot be read: {type(error).__name__}: {error}") from None


class ThreadedEnd:
    """An end for threads: any of them may send, one receives."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sending = threading.Lock()
        self._messages = Messages()

    def send(self, kind: str, body: Any = None, number: int = 0) -> None:
        """Waits while the other side does not read; nothing happens when it is gone."""
        data = packed(kind, number, body)
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def receive(self) -> Iterator[Message]:
        """Messages until the other side is gone, or sends what is none."""
        with contextlib.suppress(OSError, WireError):
            while data := self._socket.recv(CHUNK):
                yield from self._messages.take(data)


class AsyncEnd(asyncio.Protocol):
    """An end for an event loop: `on_message` for each, `on_end` once, after the last."""

    def __init__(self, on_message: Callable[[Message], None], on_end: Callable[[], object]) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._messages = Messages()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, connected: socket.socket, on_message: Callable[[Message], None], on_end: Callable[[], object]) -> AsyncEnd:
        connected.setblocking(False)
        _, end = await asyncio.get_running_loop().create_connection(lambda: cls(on_message, on_end), sock=connected)
        return end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._messages.take(data):
                self._on_message(message)
        except WireError:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_end()

    def send(self, kind: str, body: Any = None, number: int = 0) -> None:
        """Never blocks; nothing happens when the other side is gone."""
        if self._transport is not None:
            self._transport.write(packed(kind, number, body))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _packed(message: Any) -> bytes:
    data: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
    return data


def _widened(value: Any) -> Any:
    """The same with integers that msgpack has no room for as extensions."""
    if isinstance(value, dict):
        return {_widened(key): _widened(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_widened(item) for item in value]
    if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
        return msgpack.ExtType(INTEGER, f"{value:x}".encode())
    return value


def _integer(code: int, data: bytes) -> Any:
    if code != INTEGER:
        raise ValueError(f"extension {code} is not known")
    return int(data, 16)
