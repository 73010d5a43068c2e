"""`/history`: what became of jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.web.answers import json_answer
from katz_graph.web.bodies import ForgetBody, read_body
from katz_graph.web.job_views import history_entry
from katz_graph.web.jobs.job import FINISHED
from katz_graph.web.routes.documented import answers, refusals, takes
from katz_graph.web.state import State

LARGEST = 2**31


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["history"])

    @routes.get("/history", responses=answers("finished jobs by id, oldest first") | refusals())
    async def history(
        max_items: Annotated[int | None, Query(ge=0, le=LARGEST)] = None,
        offset: Annotated[int, Query(ge=-1, le=LARGEST, description="-1: the last ones")] = -1,
    ) -> Response:
        return json_answer({job.id: history_entry(job) for job in await state.jobs.history(max_items, offset)})

    @routes.get("/history/{id}", responses=answers("one finished job by its id, or nothing") | refusals())
    async def one(id: str) -> Response:
        job = await state.jobs.job(id)
        return json_answer({job.id: history_entry(job)} if job is not None and job.status in FINISHED else {})

    @routes.post("/history", openapi_extra=takes(ForgetBody), responses=answers("done") | refusals())
    async def forget(request: Request) -> Response:
        body = await read_body(request, ForgetBody)
        if body.clear:
            await state.jobs.forget_all()
        if body.delete:
            await state.jobs.forget(body.delete)
        return Response()

    return routes
