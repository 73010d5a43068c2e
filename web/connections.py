"""Connections to the server: how many there are, and how long one may take to say what it wants. Knows nothing of what is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

LARGEST_FRAME = 2**20  # bytes that a websocket client may send at once
FAREWELL = 5.0  # seconds for connections to end
ASKING = 20.0  # seconds for the lines and headers of a request


class Server(uvicorn.Server):
    """HTTP and websockets for an application. It leaves signals to others. `connections`: at once; one more is not answered."""

    def __init__(self, app: ASGIApp, connections: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
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

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Connection(H11Protocol):
    """Ends when no request is being answered and none begins within ASKING seconds, whatever else arrives meanwhile."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
