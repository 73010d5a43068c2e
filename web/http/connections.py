"""Checks and binds the server's address, and manages its connections: their number, the time for a
request to arrive, and the batching of writes. Must not know the content of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from katz_graph.core.errors import InputError
from katz_graph.web.http.access import KNOWN, OPEN, is_loopback
from katz_graph.web.http.places import Places
from katz_graph.web.http.responses import refuse

# milliseconds that a peer may leave sent data unread before the system drops its connection
# (RFC 5482)
UNREAD = 60_000
LARGEST_FRAME = 2**16  # bytes of one frame from a websocket client
FAREWELL = 5.0  # seconds for connections to end
ASKING = 20.0  # seconds for a request's line and headers to arrive
# limits for a body that continues after its request was refused: reading it lets the client read
# the response before the connection closes (RFC 9112, section 9.6)
UNWANTED_BYTES, UNWANTED_S = 2**20, 1.0
TOO_MANY = "the server has too many connections at the moment"
# seconds that an idle connection stays open: longer than in usual clients (aiohttp: 15), so that
# the server closes none while a request is arriving
KEEP_ALIVE_S = 75
DATE = 1.0  # seconds between updates of the Date header
GATHERED = 2**16  # buffered bytes that trigger a write


def check_reach(host: str, token: str | None) -> None:
    """Raises InputError if other machines could reach a server without a token."""
    if token is None and not is_loopback(host):
        raise InputError(
            f"--host {host}: other machines can reach this address, so a token is needed: "
            "--token-file FILE or KATZ_TOKEN"
        )


def listen(host: str, port: int) -> socket.socket:
    """Opens a listening socket; port 0: any free port. Raises InputError if binding fails."""
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
                f"--port {port}: taken by another process on {host}; choose another port (0: any "
                "free one)"
            ) from None
        if error.errno == errno.EACCES:
            raise InputError(
                f"--port {port}: only the administrator may use it; choose a port of at least 1024"
            ) from None
        raise InputError(f"--host {host}: {error.strerror or error}") from None
    listening.setblocking(False)
    return listening


def url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _is_fault(record: logging.LogRecord) -> bool:
    """Filters uvicorn's log. Uvicorn wrongly logs an error for a websocket that was refused with a
    response, which would let any client fill the log.
    """
    return record.getMessage() != "ASGI callable returned without completing handshake."


class HttpServer(uvicorn.Server):
    """Serves HTTP and websockets for an application. Leaves signals to the caller. Accepts
    `connections` connections, and three quarters of them from one address; `Places` selects the
    connection to close for a new one.
    """

    def __init__(self, app: ASGIApp, connections: int) -> None:
        protocol: Any = partial(HttpConnection, places=Places(connections))
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="websockets-sansio",
                ws_max_size=LARGEST_FRAME,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(FAREWELL),
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_fault)
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Makes `serve` return when all connections have ended."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Waits for `end`, instead of polling ten times a second as uvicorn does."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE):
                    await self._ending.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpConnection(H11Protocol):
    """Closes if no request is being answered and none starts within ASKING seconds, even if bytes
    arrive. Also closes soon after answering a request whose body has not arrived completely.
    """

    _patience: asyncio.TimerHandle | None = None
    _unwanted: int | None = None  # bytes still to be read of a body after its response

    def __init__(self, *given: Any, places: Places, **named: Any) -> None:
        super().__init__(*given, **named)
        self._places = places
        self.known = self.only_health = False
        self.since = self.loop.time()

    @property
    def busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast(asyncio.Transport, Gathering(transport)))
        self._places.make_room(self, self.connections)
        if self.only_health:
            self.app = only_health(self.app)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self._unwanted is not None and self._body_comes:
            self._unwanted -= len(data)
            if self._unwanted < 0:
                self.transport.pause_reading()  # `_give_up` closes the connection
                return
        super().data_received(data)
        if self.busy or self.transport.get_protocol() is not self:  # upgraded to a websocket
            self._stop_waiting()
        else:
            self._wait()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        if self.only_health:
            self.transport.close()
        else:
            super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self.known = self.known or KNOWN in self.scope
        self.since = self.loop.time()
        super().on_response_complete()
        if self._body_comes and not self.transport.is_closing():
            self._unwanted = UNWANTED_BYTES
            self.loop.call_later(UNWANTED_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    @property
    def _body_comes(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY and not self.busy

    def _give_up(self) -> None:
        self._unwanted = None
        if self._body_comes:
            self.transport.close()

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(ASKING, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def only_health(app: ASGIApp) -> ASGIApp:
    """Answers health checks and refuses every other request."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if OPEN.fullmatch(scope["path"]):
            await app(scope, receive, send)
        else:
            refusal = refuse(Request(scope), 503, TOO_MANY, "busy", retry_after=1)
            refusal.headers["Connection"] = "close"
            await refusal(scope, receive, send)

    return answer


class Gathering:
    """Sends the writes of one turn of the event loop together, because a packet costs more than its
    content.
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
