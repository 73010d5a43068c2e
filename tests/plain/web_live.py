"""Runs the websocket route on a real port, in a thread, with jobs that a test controls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from web_clients import FakeJobs, make_hub

from katz_graph.web.live.hub import Hub
from katz_graph.web.options import Limits
from katz_graph.web.routes.socket import router

Result = TypeVar("Result")


@dataclass(slots=True)
class Live:
    """Holds a running server. `do` runs a function on the server's event loop, which owns hub and
    jobs.
    """

    jobs: FakeJobs
    hub: Hub
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def do(self, function: Callable[..., Result], *arguments: Any) -> Result:
        async def call() -> Result:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(10)


@contextlib.contextmanager
def live(
    more: Callable[[Live], Sequence[BaseRoute]] = lambda live: (), graceful: int = 1
) -> Iterator[Live]:
    """Runs a server. `more`: routes in addition to `/ws`."""
    jobs = FakeJobs()
    server = Live(jobs, make_hub(jobs))
    state: Any = SimpleNamespace(
        jobs=jobs, hub=server.hub, options=SimpleNamespace(limits=Limits())
    )
    app = Starlette(routes=[*router(state).routes, *more(server)])
    config = uvicorn.Config(
        app,
        port=0,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=2**20,
        log_level="critical",
        lifespan="off",
        timeout_graceful_shutdown=graceful,
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(
        target=lambda: server.loop.run_until_complete(running.serve()), daemon=True
    )
    thread.start()
    try:
        while not running.started:
            thread.join(0.01)
        server.port = running.servers[0].sockets[0].getsockname()[1]
        yield server
    finally:
        running.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
        server.loop.close()
