"""Serves `/queue`, `/interrupt`, `/free`, `/katz`, `/history` and `/api/jobs`: shows and controls
the queue, and lists, forgets and cancels jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal, cast

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.web.http.bodies import (
    CancelBody,
    ForgetBody,
    FreeBody,
    InterruptBody,
    MoveBody,
    is_canonical,
)
from katz_graph.web.http.job_views import detail, history_entry, place_number, queue_item, summary
from katz_graph.web.http.reading import read_body
from katz_graph.web.http.responses import (
    PAGE,
    Refusal,
    joined,
    json_answer,
    json_text,
    paged,
    streamed,
)
from katz_graph.web.jobs.job import FINISHED, Job, Status
from katz_graph.web.jobs.queue import NotWaiting
from katz_graph.web.live.report import REPORT, JobReport, report_of, unpacked
from katz_graph.web.routes.documented import answers, refusals, takes
from katz_graph.web.runner_client.messages import Free
from katz_graph.web.state import State

JSON = "application/json"
MAX_QUERY_NUMBER = 2**31
STATUSES: tuple[Status, ...] = ("pending", "in_progress", *FINISHED)


def queue(state: State) -> APIRouter:
    """Serves `/queue`, `/interrupt` and `/free`."""
    routes = APIRouter(tags=["queue"])

    @routes.get("/queue", responses=answers("the running and waiting jobs, in order") | refusals())
    async def queue() -> Response:
        return streamed(_items(state.jobs.served, state.jobs.waiting))

    @routes.post("/queue", openapi_extra=takes(ForgetBody), responses=answers("done") | refusals())
    async def change(request: Request) -> Response:
        """Remove waiting jobs from the queue."""
        body = await read_body(request, ForgetBody)
        if body.clear:
            await state.jobs.clear_waiting()
        if body.delete:
            waiting = {job.id for job in state.jobs.waiting}
            await state.jobs.cancel(identity for identity in body.delete if identity in waiting)
        return Response()

    @routes.post(
        "/interrupt",
        openapi_extra=takes(InterruptBody, required=False),
        responses=answers("done") | refusals(),
    )
    async def interrupt(request: Request) -> Response:
        """Stop the jobs that devices serve, or one job if it runs."""
        body = await read_body(request, InterruptBody, empty_is_default=True)
        await state.jobs.interrupt(body.prompt_id)
        return Response()

    @routes.post(
        "/free",
        openapi_extra=takes(FreeBody, required=False),
        responses=answers("done") | refusals(503),
    )
    async def free(request: Request) -> Response:
        """Unload models and drop cached results of nodes."""
        body = await read_body(request, FreeBody, empty_is_default=True)
        await state.runner.ask(Free(body.unload_models, body.free_memory))
        return Response()

    return routes


def own(state: State) -> APIRouter:
    """Serves `/katz/queue` and `/katz/jobs`, which ComfyUI does not have."""
    routes = APIRouter(prefix="/katz", tags=["katz"])

    @routes.get(
        "/queue",
        responses=answers("the queue with predictions, and whether it is paused") | refusals(),
    )
    async def queue() -> Response:
        jobs, waits = state.jobs, state.jobs.expected_waits()
        return json_answer(
            {
                "paused": jobs.paused,
                "draining": state.draining,
                "expected_wait_seconds": jobs.expected_wait(),
                "limit": state.options.limits.queue,
                "running": [
                    summary(job)
                    | {
                        "predicted_seconds": job.predicted,
                        "remaining_seconds": jobs.remaining(job),
                    }
                    for job in jobs.running
                ],
                "pending": [
                    summary(job)
                    | {
                        "predicted_seconds": job.predicted,
                        "expected_wait_seconds": waits.get(job.id),
                    }
                    for job in jobs.pending
                ],
            }
        )

    @routes.post(
        "/queue/pause",
        responses=answers("no job is started until resumed; this survives a restart") | refusals(),
    )
    async def pause() -> Response:
        await state.jobs.pause()
        return json_answer({"paused": True})

    @routes.post("/queue/resume", responses=answers("jobs are started again") | refusals())
    async def resume() -> Response:
        await state.jobs.resume()
        return json_answer({"paused": False})

    @routes.post(
        "/queue/clear", responses=answers("all waiting and running jobs are cancelled") | refusals()
    )
    async def clear() -> Response:
        return json_answer({"cancelled": await state.jobs.cancel_all()})

    @routes.get(
        "/jobs/{id}/report",
        responses=answers("the job's facts, also while it runs", JobReport) | refusals(404),
    )
    async def report(id: str, client_id: Annotated[str, Query(max_length=200)] = "") -> Response:
        """Return a job's plans, timeline, seconds and reasons. A client's job requires the
        `client_id`.
        """
        job = await state.jobs.job(id)
        if job is None or job.client not in (None, client_id):
            raise Refusal(404, "this client has no such job")
        if (live := state.hub.state(job)) is not None:
            return Response(REPORT.dump_json(report_of(job, live)), media_type=JSON)
        packed = await state.jobs.report(id)
        if packed is None:
            raise Refusal(404, "the job has no report, or it was deleted")
        return Response(await asyncio.to_thread(unpacked, packed), media_type=JSON)

    @routes.post(
        "/jobs/{id}/move",
        openapi_extra=takes(MoveBody),
        responses=answers("its new place") | refusals(409),
    )
    async def move(id: str, request: Request) -> Response:
        """Move a waiting job. `position` is the number of jobs ahead; null if the job no longer
        waits.
        """
        body = await read_body(request, MoveBody)
        try:
            job = await state.jobs.move(id, body.number, front=body.front, before=body.before)
        except NotWaiting as error:
            raise Refusal(409, str(error)) from None
        position = next(
            (place for place, waiting in enumerate(state.jobs.pending) if waiting.id == job.id),
            None,
        )
        return json_answer({"id": job.id, "number": place_number(job), "position": position})

    return routes


def history(state: State) -> APIRouter:
    """Serves `/history`."""
    routes = APIRouter(tags=["history"])

    @routes.get("/history", responses=answers("finished jobs by id, oldest first") | refusals())
    async def history(
        max_items: Annotated[int | None, Query(ge=0, le=MAX_QUERY_NUMBER)] = None,
        offset: Annotated[
            int, Query(ge=-1, le=MAX_QUERY_NUMBER, description="-1: the last ones")
        ] = -1,
    ) -> Response:
        count, first = max_items, max(0, offset)
        if max_items is not None and offset < 0:
            first = max(0, await state.jobs.finished() - max_items)
        return streamed(_entries(state, first, count))

    @routes.get(
        "/history/{id}",
        responses=answers("one finished job by its id, or an empty object") | refusals(),
    )
    async def one(id: str) -> Response:
        job = await state.jobs.job(id)
        return json_answer(
            {job.id: history_entry(job)} if job is not None and job.status in FINISHED else {}
        )

    @routes.post(
        "/history", openapi_extra=takes(ForgetBody), responses=answers("done") | refusals()
    )
    async def forget(request: Request) -> Response:
        body = await read_body(request, ForgetBody)
        if body.clear:
            await state.jobs.forget_all()
        if body.delete:
            await state.jobs.forget(body.delete)
        return Response()

    return routes


def listing(state: State) -> APIRouter:
    """Serves `/api/jobs`."""
    routes = APIRouter(prefix="/api/jobs", tags=["jobs"])

    @routes.get("", responses=answers("a page of jobs") | refusals())
    async def listing(
        status: Annotated[str | None, Query(description="some of " + ",".join(STATUSES))] = None,
        workflow_id: Annotated[str | None, Query(max_length=200)] = None,
        sort_by: Literal["created_at", "execution_duration"] = "created_at",
        sort_order: Literal["asc", "desc"] = "desc",
        limit: Annotated[int | None, Query(gt=0, le=MAX_QUERY_NUMBER)] = None,
        offset: Annotated[int, Query(ge=0, le=MAX_QUERY_NUMBER)] = 0,
    ) -> Response:
        jobs, total = await state.jobs.listed(
            _statuses(status), workflow_id, sort_by, sort_order == "desc", limit, offset
        )
        pagination = {
            "offset": offset,
            "limit": limit,
            "total": total,
            "has_more": offset + len(jobs) < total,
        }
        return await asyncio.to_thread(
            lambda: json_answer({"jobs": [summary(job) for job in jobs], "pagination": pagination})
        )

    @routes.post(
        "/cancel",
        openapi_extra=takes(CancelBody),
        responses=answers("whether any job was cancelled") | refusals(),
    )
    async def cancel_several(request: Request) -> Response:
        body = await read_body(request, CancelBody)
        invalid = [identity for identity in body.job_ids if not is_canonical(identity)]
        if invalid:
            return json_answer(
                {"error": "not every id is a lowercase UUID with hyphens", "invalid_ids": invalid},
                400,
            )
        return json_answer({"cancelled": any((await state.jobs.cancel(body.job_ids)).values())})

    @routes.get("/{id}", responses=answers("all of one job") | refusals(404))
    async def one(id: str) -> Response:
        job = await state.jobs.job(id)
        if job is None:
            raise Refusal(404, "Job not found")
        return json_answer(detail(job))

    @routes.post("/{id}/cancel", responses=answers("whether it was cancelled") | refusals())
    async def cancel(id: str) -> Response:
        return json_answer({"cancelled": (await state.jobs.cancel([id])).get(id, False)})

    return routes


async def _items(running: Sequence[Job], pending: Sequence[Job]) -> AsyncIterator[bytes]:
    for opening, jobs in ((b'{"queue_running":[', running), (b'],"queue_pending":[', pending)):
        yield opening
        async for piece in joined(paged(jobs), lambda job: json_text(queue_item(job))):
            yield piece
    yield b"]}"


async def _entries(state: State, first: int, count: int | None) -> AsyncIterator[bytes]:
    """Streams up to `count` finished jobs from index `first`. May skip jobs if others are forgotten
    during the call.
    """

    async def pages() -> AsyncIterator[Sequence[Job]]:
        start = first
        while page := await state.jobs.history(
            PAGE if count is None else min(PAGE, first + count - start), start
        ):
            yield page
            start += len(page)

    yield b"{"
    async for piece in joined(
        pages(), lambda job: f"{json_text(job.id)}:{json_text(history_entry(job))}"
    ):
        yield piece
    yield b"}"


def _statuses(text: str | None) -> list[Status]:
    """Splits names at commas. Raises Refusal 400 for an unknown name."""
    if not text:
        return []
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in STATUSES:
            raise Refusal(400, f"Invalid status value(s): expected some of {', '.join(STATUSES)}")
    return cast("list[Status]", names)
