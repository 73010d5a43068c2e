"""Builds the server's ASGI application: the client routes with and without `/api`, errors in
ComfyUI's format, and the security middleware around them.
"""

from __future__ import annotations

import errno
import logging
from pkgutil import resolve_name
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from katz_graph.core.errors import InputError, KatzError
from katz_graph.web.http.access_log import RequestRecord
from katz_graph.web.http.reading import Reading
from katz_graph.web.http.responses import PathRedactor, Refusal, refuse
from katz_graph.web.http.security import Security
from katz_graph.web.routes import frontend
from katz_graph.web.state import State

CLOSED = 499  # the client disconnected before the response
RETRY_AFTER_S = 2.0  # seconds until a client may retry a request that cannot be served now
log = logging.getLogger("katz.web")

TWICE = (
    "prompt:router",
    "jobs:queue",
    "jobs:own",
    "jobs:history",
    "files:router",
    "gallery:router",
    "users:router",
    "models:router",
    "info:router",
    "health:router",
    "frontend:extensions",
    "frontend:shipped",
    "documents:router",
    "socket:router",
)
"""Routes served with and without `/api`, as module:function of `katz_graph.web.routes`."""
ONCE = ("jobs:listing", "info:internal", "info:disabled", "frontend:templates", "frontend:style")
"""Routes served without the `/api` alias."""


def build(state: State) -> ASGIApp:
    app = FastAPI(
        title="Katz Graph", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    app.state.reading = Reading()
    for name in (*TWICE, *ONCE):
        routes: APIRouter = resolve_name(f"katz_graph.web.routes.{name}")(state)
        app.include_router(routes)
        if name in TWICE:
            app.include_router(routes, prefix="/api", include_in_schema=False)
    app.include_router(_description(app))
    app.include_router(frontend.page(state, "/status"))
    shown = frontend.front_end(state.options.frontend)
    if shown is None:
        app.include_router(frontend.page(state, "/"))
    else:
        app.mount("/", shown)
    _refusals(app, state.concealment)
    return RequestRecord(Security(app, state.options), state.metrics.answered)


def _refusals(app: FastAPI, concealment: PathRedactor) -> None:
    @app.exception_handler(KatzError)
    async def refused(request: Request, error: KatzError) -> Response:
        status = getattr(error, "status", 400 if isinstance(error, InputError) else 503)
        kind, wait = getattr(error, "kind", "invalid_request"), getattr(error, "retry_after", None)
        details = error.details if isinstance(error, Refusal) else ""
        if status == 503 and wait is None:
            wait = RETRY_AFTER_S
        return refuse(
            request, status, concealment.text(str(error)), kind, concealment.text(details), wait
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [
            f"{'.'.join(map(str, entry['loc'][1:]))}: {entry['msg']}"
            for entry in error.errors()[:10]
        ]
        return refuse(request, 400, "the request is invalid", details="\n".join(problems))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        answer = refuse(request, error.status_code, concealment.text(str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(ClientDisconnect)
    async def disconnected(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLOSED)

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> Response:
        log.error("%s", error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return refuse(
            request,
            507 if full else 503,
            "the disk is full" if full else "the server cannot read or write a file",
        )

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return refuse(request, 500, "internal error; see the server's log")


def _description(app: FastAPI) -> APIRouter:
    """Serves `/openapi.json` without FastAPI's 422 response: malformed parameters get an error in
    ComfyUI's format.
    """
    routes = APIRouter(include_in_schema=False)

    @routes.get("/openapi.json")
    async def description() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title,
                version="1",
                summary="Every route is also served under /api.",
                routes=app.routes,
            )
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            schema.get("components", {}).get("schemas", {}).pop("HTTPValidationError", None)
            schema.get("components", {}).get("schemas", {}).pop("ValidationError", None)
            app.openapi_schema = schema
        return app.openapi_schema

    return routes
