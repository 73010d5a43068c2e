"""Serves `/`, `/status`, `/extensions` and `/templates`: the editor or another front end from a
folder, a plain status page, packs' scripts, and the bundled workflows.
"""

from __future__ import annotations

import asyncio
import html
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from katz_graph.formats.shipped import INDEX, TEMPLATES, Template, listing
from katz_graph.web.http.content_policy import EDITOR_POLICY, page_policy
from katz_graph.web.http.responses import json_answer
from katz_graph.web.routes.documented import answers, refusals
from katz_graph.web.runner_client.messages import GetScripts, GetTemplate
from katz_graph.web.state import State

TYPES = {
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".json": "application/json",
    ".map": "application/json",
    ".wasm": "application/wasm",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
# the status page
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Katz Graph</title><meta http-equiv="refresh"
content="5"></head> <body><h1>Katz Graph</h1> <p>{state}. Running: {running}; waiting:
{pending}.</p> <p>Queue a workflow with <code>katz submit</code>, or with any client of the
convention. The routes are described in <a href="openapi.json">openapi.json</a>, figures are in "
"<a href="metrics">metrics</a>. <code>katz serve --frontend DIR</code> serves another front end at
<a href="./">/</a>.</p></body></html>
"""
EDITOR = Path(str(files("katz_graph.web"))) / "dist"
"""The folder of the built editor, which may not exist."""


class Assets(StaticFiles):
    """Serves the files of one folder. Media types do not depend on this machine's configuration.
    Clients always revalidate. `policy`: the pages' Content-Security-Policy; None: a policy that
    allows each page's inline scripts.
    """

    def __init__(self, folder: Path, policy: str | None = None, check_dir: bool = True) -> None:
        super().__init__(directory=folder, html=True, check_dir=check_dir)
        self._policy = policy

    async def get_response(self, path: str, scope: Scope) -> Response:
        try:
            answer = await super().get_response(path, scope)
        except OSError:  # a cycle of links, or an invalid file name
            raise HTTPException(404) from None
        if isinstance(answer, FileResponse):
            suffix = Path(answer.path).suffix.lower()
            if suffix in TYPES:
                answer.headers["content-type"] = (
                    f"{TYPES[suffix]}; charset=utf-8" if "text" in TYPES[suffix] else TYPES[suffix]
                )
            answer.headers["cache-control"] = "no-cache"
        return answer

    def file_response(
        self,
        full_path: str | os.PathLike[str],
        stat_result: os.stat_result,
        scope: Scope,
        status_code: int = 200,
    ) -> Response:
        """Adds a page's policy, also to a 304 response: the policy replaces the cached one."""
        answer = super().file_response(full_path, stat_result, scope, status_code)
        if Path(full_path).suffix.lower() == ".html":
            answer.headers["content-security-policy"] = self._policy or page_policy(
                Path(full_path).read_bytes()
            )
        return answer


def front_end(folder: Path | None) -> Assets | None:
    """Returns the application served at `/`: a front end's folder, or else the editor; None if
    neither exists.
    """
    if folder is not None:
        return Assets(folder)
    return Assets(EDITOR, EDITOR_POLICY) if (EDITOR / "index.html").is_file() else None


def page(state: State, path: str) -> APIRouter:
    """Serves a plain status page."""
    routes = APIRouter(include_in_schema=False)

    @routes.get(path)
    async def show() -> Response:
        now = "Shutting down" if state.draining else "Ready" if state.runner.ready else "Starting"
        paused = ", paused" if state.jobs.paused else ""
        return HTMLResponse(
            PAGE.format(
                state=html.escape(now + paused),
                running=len(state.jobs.running),
                pending=len(state.jobs.pending),
            )
        )

    return routes


def style(state: State) -> APIRouter:
    """Serves `/user.css`, which ComfyUI's page links to, as an empty style sheet."""
    routes = APIRouter(include_in_schema=False)

    @routes.get("/user.css")
    async def empty() -> Response:
        return Response(media_type="text/css")

    return routes


def extensions(state: State) -> APIRouter:
    """Serves packs' scripts for the editor."""
    routes = APIRouter(tags=["info"])

    @routes.get("/extensions", responses=answers("URLs of packs' scripts") | refusals(503))
    async def listing() -> Response:
        return json_answer(await asyncio.to_thread(_scripts, await state.runner.ask(GetScripts())))

    @routes.get("/extensions/{pack}/{path:path}", include_in_schema=False)
    async def script(pack: str, path: str, request: Request) -> Response:
        folder = (await state.runner.ask(GetScripts())).get(pack)
        if folder is None:
            raise HTTPException(404)
        return await Assets(Path(folder), check_dir=False).get_response(path, request.scope)

    return routes


def templates(state: State) -> APIRouter:
    """Serves the bundled workflows for the template dialog of ComfyUI's page. Clients can only name
    listed files.
    """
    routes = APIRouter(prefix="/templates", include_in_schema=False)

    @routes.get("/index_logo.json")
    async def logos() -> Response:
        return json_answer({})

    @routes.get("/{name}.json")
    async def workflow(name: str, request: Request) -> Response:
        if f"{name}.json" == INDEX.name:
            return await Assets(TEMPLATES).get_response(INDEX.name, request.scope)
        return json_answer(await _template(state, name))

    @routes.get("/{picture}.webp")
    async def shown(picture: str, request: Request) -> Response:
        return await Assets(TEMPLATES).get_response(f"{picture}.webp", request.scope)

    return routes


def shipped(state: State) -> APIRouter:
    """Serves the bundled workflows for other clients: `/katz/templates`."""
    routes = APIRouter(prefix="/katz/templates", tags=["editor"])

    @routes.get("", responses=answers("in the order to show them", list[Template]) | refusals())
    async def listed() -> Response:
        return json_answer([asdict(template) for template in await asyncio.to_thread(listing)])

    @routes.get("/{name}", responses=answers("as an editor opens it") | refusals(404, 503))
    async def document(name: str) -> Response:
        return json_answer(await _template(state, name))

    return routes


async def _template(state: State, name: str) -> Mapping[str, Any]:
    found = await state.runner.ask(GetTemplate(name))
    if found is None:
        raise HTTPException(404)
    return found


def _scripts(folders: Mapping[str, str]) -> list[str]:
    found = (
        (pack, file.relative_to(folder).as_posix())
        for pack, folder in folders.items()
        for file in sorted(Path(folder).rglob("*.js"))
    )
    return [quote(f"/extensions/{pack}/{name}") for pack, name in found]
