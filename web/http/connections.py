"""Checks and binds the address that a server listens on, and limits the connections to it: their
number, the time for a request to arrive, and when writes leave. Must not know what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from katz_graph.errors import InputError
from katz_graph.web.http.access import is_loopback

# milliseconds that a peer may leave what was sent to it unread before the system drops its
# connection (RFC 5482)
UNREAD = 60_000
LARGEST_FRAME = 2**20  # bytes that a websocket client may send at once
FAREWELL = 5.0  # seconds for connections to end
ASKING = 20.0  # seconds for the lines and headers of a request
DATE = 1.0  # seconds after which the date in answers is set anew
GATHERED = 2**16  # bytes that are sent at once, however many more follow


def check_reach(host: str, token: str | None) -> None:
    """Raises InputError when others could reach a server that asks for no token."""
    if token is None and not is_loopback(host):
        raise InputError(
            f"--host {host}: others can reach this address, so a token is needed: --token-file "
            "FILE or KATZ_TOKEN"
        )


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket; port 0: any free one. InputError if the address cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InputError(
            f"--host {host}: no such address: {getattr(error, 'strerror', None) or error}"
        ) from None
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
            raise InputError(
                f"--port {port}: taken by another process on {host}; choose another (0: any "
                "that is free)"
            ) from None
        if error.errno == errno.EACCES:
            raise InputError(
                f"--port {port}: only the administrator may listen there; choose one from 1024 on"
            ) from None
        raise InputError(f"--host {host}: {error.strerror or error}") from None
    listening.setblocking(False)
    return listening


def url(host: str, port: int) -> str:
    """Writes the address as a browser takes it."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _is_fault(record: logging.LogRecord) -> bool:
    """Tells if a line of uvicorn's log is one. It takes a websocket that was refused with an answer
    for one that had none, and strangers could fill the log with that; ours all have one.
    """
    return record.getMessage() != "ASGI callable returned without completing handshake."


class HttpServer(uvicorn.Server):
    """Serves HTTP and websockets for an application. Leaves signals to others. Takes `connections`
    at once; one more is not answered.
    """

    def __init__(self, app: ASGIApp, connections: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpConnection,
                ws="websockets-sansio",
                ws_max_size=LARGEST_FRAME,
                ws_per_message_deflate=False,
                limit_concurrency=connections,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=int(FAREWELL),
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_fault)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Lets `serve` return once the connections have ended."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Waits to be told of the end, where uvicorn polls ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE):
                    await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpConnection(H11Protocol):
    """Closes when no request is being answered and none begins within ASKING seconds, whatever else
    arrives meanwhile.
    """

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Gathering(transport)))
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.abort()
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering or self.transport.get_protocol() is not self:  # it is a websocket now
            self._stop_waiting()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(ASKING, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class Gathering:
    """Sends the writes of one turn of the event loop together: a packet takes longer than all that
    is written into it.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._gathered = bytearray()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        self._gathered += data
        if len(self._gathered) > GATHERED:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._gathered:
            data, self._gathered = self._gathered, bytearray()
            self._transport.write(data)
