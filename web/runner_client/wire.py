"""Sends messages between server and runner: one end for threads and one for asyncio.

A message travels as its kind, a number (an answer bears that of its question) and its fields. Knows
nothing of what they mean.
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

LARGEST = 256 * 2**20  # bytes of one message
CHUNK = 2**18  # bytes that arrive at once, at most


class WireError(KatzError):
    """A message is malformed, or too large."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """Holds a message that arrived, and its number."""

    number: int
    message: ToRunner | FromRunner


def packed(message: ToRunner | FromRunner, number: int = 0) -> bytes:
    """Packs a message as bytes; tuples arrive as lists. Raises TypeError or ValueError for a value
    that is not plain data, or too large.
    """
    kind, body = to_plain(message)
    data = pack([kind, number, body])
    if len(data) > LARGEST:
        raise ValueError(f"{len(data):,} bytes are more than the {LARGEST:,} of a message")
    return data


class RunnerMessages:
    """Takes in bytes as they arrive, and yields whole messages."""

    def __init__(self, largest: int = LARGEST + CHUNK) -> None:
        self._unpacker = unpacker(largest)

    def take(self, data: bytes) -> Iterator[Numbered]:
        """Yields the messages that are whole. Raises WireError when the bytes are malformed."""
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
    """An end for threads: any of them may send, one receives."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._sending = threading.Lock()
        self._messages = RunnerMessages()

    def send(self, message: FromRunner, number: int = 0) -> None:
        """Sends a message. Waits while the other side does not read; does nothing if it is gone."""
        data = packed(message, number)
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(data)

    def receive(self) -> Iterator[Numbered]:
        """Yields messages until the other side is gone, or sends a malformed one."""
        with contextlib.suppress(OSError, WireError):
            while data := self._socket.recv(CHUNK):
                yield from self._messages.take(data)


class AsyncEnd(asyncio.Protocol):
    """An end for an event loop: `on_message` for each, `on_end` once, after the last."""

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
        """Sends a message. Never blocks; does nothing when the other side is gone."""
        if self._transport is not None:
            self._transport.write(packed(message, number))
