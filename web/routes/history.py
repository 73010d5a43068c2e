"""Serves `/history`: finished jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.web.http.job_views import history_entry
from katz_graph.web.http.json import PAGE, joined, json_text, streamed
from katz_graph.web.http.responses import json_answer
from katz_graph.web.http.schemas import ForgetBody, read_body
from katz_graph.web.jobs.job import FINISHED, Job
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
        count, first = max_items, max(0, offset)
        if max_items is not None and offset < 0:
            first = max(0, await state.jobs.finished() - max_items)
        return streamed(_entries(state, first, count))

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


async def _entries(state: State, first: int, count: int | None) -> AsyncIterator[bytes]:
    """Writes finished jobs from the one at `first`, `count` at most. Some are left out where others
    are forgotten meanwhile.
    """

    async def pages() -> AsyncIterator[Sequence[Job]]:
        start = first
        while page := await state.jobs.history(PAGE if count is None else min(PAGE, first + count - start), start):
            yield page
            start += len(page)

    yield b"{"
    async for piece in joined(pages(), lambda job: f"{json_text(job.id)}:{json_text(history_entry(job))}"):
        yield piece
    yield b"}"
