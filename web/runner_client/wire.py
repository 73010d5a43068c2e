"""Sends messages between the server, whose end uses asyncio, and the runner, whose end uses
threads.

A message consists of its kind, a number (an answer has that of its question) and its fields. Must
not know their meaning.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from katz_graph.core.errors import KatzError
from katz_graph.ipc.packing import UNREADABLE, pack, unpacker
from katz_graph.web.runner_client.messages import (
    FromRunner,
    MalformedMessage,
    ToRunner,
    from_plain,
    to_plain,
)

MAX_MESSAGE_BYTES = 256 * 2**20  # bytes of one message
CHUNK = 2**18  # bytes that one read returns at most


class WireError(KatzError):
    """Reports a malformed or oversized message."""


@dataclass(frozen=True, slots=True)
class Numbered:
    number: int
    message: ToRunner | FromRunner


def packed(message: ToRunner | FromRunner, number: int = 0) -> bytes:
    """Serializes a message; tuples arrive as lists. Raises TypeError or ValueError for values that
    are not plain data, or too large.
    """
    kind, body = to_plain(message)
    data = pack([kind, number, body])
    if len(data) > MAX_MESSAGE_BYTES:
        raise ValueError(
            f"{len(data):,} bytes are more than the {MAX_MESSAGE_BYTES:,} of a message"
        )
    return data


class RunnerMessages:
    """Parses received bytes into messages."""

    def __init__(self, largest: int = MAX_MESSAGE_BYTES + CHUNK) -> None:
        self._unpacker = unpacker(largest)

    def take(self, data: bytes) -> Iterator[Numbered]:
        """Adds bytes and yields the complete messages. Raises WireError for malformed bytes."""
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                kind, number, body = message
                yield Numbered(number, from_plain(kind, body))
        except UNREADABLE as error:
            raise WireError(f"a message cannot be read: {type(error).__name__}: {error}") from None
        except MalformedMessage as error:
            raise WireError(str(error)) from None


class ThreadedEnd:
    """Connects threads: any thread may send, one receives."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sending = threading.Lock()
        self._messages = RunnerMessages()

    def send(self, message: FromRunner, number: int = 0) -> None:
        """Sends a message. Blocks while the peer does not read. Does nothing if the peer has
        disconnected.
        """
        data = packed(message, number)
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def receive(self) -> Iterator[Numbered]:
        """Yields messages until the peer disconnects or sends a malformed message."""
        with contextlib.suppress(OSError, WireError):
            while data := self._socket.recv(CHUNK):
                yield from self._messages.take(data)


class AsyncEnd(asyncio.Protocol):
    """Connects an event loop. Calls `on_message` for each message, and `on_end` once after the
    last.
    """

    def __init__(
        self, on_message: Callable[[Numbered], None], on_end: Callable[[], object]
    ) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._messages = RunnerMessages()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(
        cls,
        connected: socket.socket,
        on_message: Callable[[Numbered], None],
        on_end: Callable[[], object],
    ) -> AsyncEnd:
        connected.setblocking(False)
        _, end = await asyncio.get_running_loop().create_connection(
            lambda: cls(on_message, on_end), sock=connected
        )
        return end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._messages.take(data):
                self._on_message(message)
        except WireError:
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_end()

    def send(self, message: ToRunner, number: int = 0) -> None:
        """Sends a message without blocking. Does nothing if the peer has disconnected."""
        if self._transport is not None:
            self._transport.write(packed(message, number))
