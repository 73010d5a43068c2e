"""Serves `/api/jobs`: all jobs in one list, and cancelling."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.web.http.job_views import detail, summary
from katz_graph.web.http.prompt_bodies import is_canonical
from katz_graph.web.http.responses import Refusal, json_answer
from katz_graph.web.http.schemas import CancelBody, read_body
from katz_graph.web.jobs.job import FINISHED, Status
from katz_graph.web.routes.documented import answers, refusals, takes
from katz_graph.web.routes.history import LARGEST
from katz_graph.web.state import State

STATUSES: tuple[Status, ...] = ("pending", "in_progress", *FINISHED)


def router(state: State) -> APIRouter:
    routes = APIRouter(prefix="/api/jobs", tags=["jobs"])

    @routes.get("", responses=answers("a page of jobs") | refusals())
    async def listing(
        status: Annotated[str | None, Query(description="some of " + ",".join(STATUSES))] = None,
        workflow_id: Annotated[str | None, Query(max_length=200)] = None,
        sort_by: Literal["created_at", "execution_duration"] = "created_at",
        sort_order: Literal["asc", "desc"] = "desc",
        limit: Annotated[int | None, Query(gt=0, le=LARGEST)] = None,
        offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    ) -> Response:
        jobs, total = await state.jobs.listed(_statuses(status), workflow_id, sort_by, sort_order == "desc", limit, offset)
        pagination = {"offset": offset, "limit": limit, "total": total, "has_more": offset + len(jobs) < total}
        return await asyncio.to_thread(lambda: json_answer({"jobs": [summary(job) for job in jobs], "pagination": pagination}))

    @routes.post("/cancel", openapi_extra=takes(CancelBody), responses=answers("whether any was still to be cancelled") | refusals())
    async def cancel_several(request: Request) -> Response:
        body = await read_body(request, CancelBody)
        invalid = [identity for identity in body.job_ids if not is_canonical(identity)]
        if invalid:
            return json_answer({"error": "not every id is a lowercase UUID with hyphens", "invalid_ids": invalid}, 400)
        return json_answer({"cancelled": any((await state.jobs.cancel(body.job_ids)).values())})

    @routes.get("/{id}", responses=answers("all of one job") | refusals(404))
    async def one(id: str) -> Response:
        job = await state.jobs.job(id)
        if job is None:
            raise Refusal(404, "Job not found")
        return json_answer(detail(job))

    @routes.post("/{id}/cancel", responses=answers("whether it was still to be cancelled") | refusals())
    async def cancel(id: str) -> Response:
        return json_answer({"cancelled": (await state.jobs.cancel([id])).get(id, False)})

    return routes


def _statuses(text: str | None) -> list[Status]:
    """Splits names between commas. Raises Refusal 400 for an unknown one."""
    if not text:
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in STATUSES:
            raise Refusal(400, f"Invalid status value(s): expected some of {', '.join(STATUSES)}")
    return cast("list[Status]", names)
