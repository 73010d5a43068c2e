"""Serves `/queue`, `/interrupt`, `/free`, and `/katz/queue`: shows and steers the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.web.http.job_views import place_number, queue_item, summary
from katz_graph.web.http.json import joined, json_text, paged, streamed
from katz_graph.web.http.responses import Refusal, json_answer
from katz_graph.web.http.schemas import ForgetBody, FreeBody, InterruptBody, MoveBody, read_body
from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.queue import NotWaiting
from katz_graph.web.routes.documented import answers, refusals, takes
from katz_graph.web.state import State


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["queue"])

    @routes.get("/queue", responses=answers("what runs and what waits, in order") | refusals())
    async def queue() -> Response:
        return streamed(_items(state.jobs.running, state.jobs.pending))

    @routes.post("/queue", openapi_extra=takes(ForgetBody), responses=answers("done") | refusals())
    async def change(request: Request) -> Response:
        """Take jobs that wait out of the queue."""
        body = await read_body(request, ForgetBody)
        if body.clear:
            await state.jobs.clear_pending()
        if body.delete:
            waiting = {job.id for job in state.jobs.pending}
            await state.jobs.cancel(identity for identity in body.delete if identity in waiting)
        return Response()

    @routes.post("/interrupt", openapi_extra=takes(InterruptBody, required=False), responses=answers("done") | refusals())
    async def interrupt(request: Request) -> Response:
        """Stop what runs, or one job if it runs."""
        body = await read_body(request, InterruptBody, empty_is_default=True)
        await state.jobs.interrupt(body.prompt_id)
        return Response()

    @routes.post("/free", openapi_extra=takes(FreeBody, required=False), responses=answers("done") | refusals(503))
    async def free(request: Request) -> Response:
        """Unload models, and forget the results of nodes."""
        body = await read_body(request, FreeBody, empty_is_default=True)
        await state.runner.free(body.unload_models, body.free_memory)
        return Response()

    return routes


async def _items(running: Sequence[Job], pending: Sequence[Job]) -> AsyncIterator[bytes]:
    for opening, jobs in ((b'{"queue_running":[', running), (b'],"queue_pending":[', pending)):
        yield opening
        async for piece in joined(paged(jobs), lambda job: json_text(queue_item(job))):
            yield piece
    yield b"]}"


def own(state: State) -> APIRouter:
    """Serves the routes that ComfyUI does not have."""
    routes = APIRouter(prefix="/katz", tags=["katz"])

    @routes.get("/queue", responses=answers("the queue with predictions, and whether it is paused") | refusals())
    async def queue() -> Response:
        jobs, waits = state.jobs, state.jobs.expected_waits()
        return json_answer(
            {
                "paused": jobs.paused,
                "draining": state.draining,
                "expected_wait_seconds": jobs.expected_wait(),
                "limit": state.options.limits.queue,
                "running": [summary(job) | {"predicted_seconds": job.predicted} for job in jobs.running],
                "pending": [
                    summary(job) | {"predicted_seconds": job.predicted, "expected_wait_seconds": waits.get(job.id)} for job in jobs.pending
                ],
            }
        )

    @routes.post("/queue/pause", responses=answers("no job is started until resumed; this survives a restart") | refusals())
    async def pause() -> Response:
        await state.jobs.pause()
        return json_answer({"paused": True})

    @routes.post("/queue/resume", responses=answers("jobs are started again") | refusals())
    async def resume() -> Response:
        await state.jobs.resume()
        return json_answer({"paused": False})

    @routes.post("/queue/clear", responses=answers("all that waited or ran is cancelled") | refusals())
    async def clear() -> Response:
        return json_answer({"cancelled": await state.jobs.cancel_all()})

    @routes.post("/jobs/{id}/move", openapi_extra=takes(MoveBody), responses=answers("its new place") | refusals(409))
    async def move(id: str, request: Request) -> Response:
        """`position` counts the jobs before it; null when it stopped waiting meanwhile."""
        body = await read_body(request, MoveBody)
        try:
            job = await state.jobs.move(id, body.number, front=body.front, before=body.before)
        except NotWaiting as error:
            raise Refusal(409, str(error)) from None
        position = next((place for place, waiting in enumerate(state.jobs.pending) if waiting.id == job.id), None)
        return json_answer({"id": job.id, "number": place_number(job), "position": position})

    return routes
