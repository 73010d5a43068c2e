"""Serves `/templates`: the workflows that come with the package, as the stock front end's dialog
asks for them. Always the same; no client names a file that is not listed.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.formats.shipped import INDEX, TEMPLATES
from katz_graph.web.http.responses import json_answer
from katz_graph.web.routes.frontend import Assets
from katz_graph.web.state import State


def router(state: State) -> APIRouter:
    routes = APIRouter(prefix="/templates", include_in_schema=False)

    @routes.get("/index_logo.json")
    async def logos() -> Response:
        return json_answer({})

    @routes.get("/{name}.json")
    async def workflow(name: str, request: Request) -> Response:
        if f"{name}.json" == INDEX.name:
            return await Assets(directory=TEMPLATES).get_response(INDEX.name, request.scope)
        found = await state.runner.template(name)
        if found is None:
            raise HTTPException(404)
        return json_answer(found)

    @routes.get("/{picture}.webp")
    async def shown(picture: str, request: Request) -> Response:
        return await Assets(directory=TEMPLATES).get_response(f"{picture}.webp", request.scope)

    return routes
