"""Assigns every request an id, which response and log share, and measures its time. Must not know
routes.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from katz_graph.web.logs import REQUEST

SANE = re.compile(r"[A-Za-z0-9._-]{1,64}")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
UNMATCHED = "unmatched"
log = logging.getLogger("katz.web")


class RequestRecord:
    """Wraps the application as the outermost ASGI middleware. Calls `answered(method, route,
    status, seconds)` for every HTTP request.
    """

    def __init__(self, app: ASGIApp, answered: Callable[[str, str, int, float], None]) -> None:
        self._app, self._answered = app, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        identity = _identity(scope)
        token = REQUEST.set(identity)
        began, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-ID"] = identity
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if scope["type"] == "http":
                self._record(scope, status, time.perf_counter() - began)
            REQUEST.reset(token)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else "other"
        route = _template(scope)
        self._answered(method, route, status, seconds)
        log.log(
            logging.ERROR if status >= 500 and status != 503 else logging.DEBUG,
            "%s %s %d %.1f ms",
            method,
            route,
            status,
            seconds * 1e3,
        )


def _identity(scope: Scope) -> str:
    given = next(
        (value for name, value in scope["headers"] if name == b"x-request-id"), b""
    ).decode("latin-1")
    return given if SANE.fullmatch(given) else uuid.uuid4().hex


def _template(scope: Scope) -> str:
    route: Any = scope.get("route")
    path = getattr(route, "path", None)
    return path if isinstance(path, str) else UNMATCHED
