"""Serves `/livez`, `/readyz` and `/metrics` for monitoring."""

from __future__ import annotations

import contextlib

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import PlainTextResponse, Response

from katz_graph.core.errors import KatzError
from katz_graph.web.metrics import figures
from katz_graph.web.routes.documented import answers, refusals
from katz_graph.web.runner_client.facts import RunnerFacts
from katz_graph.web.state import State

TEXT = {"type": "string"}


def _served(facts: RunnerFacts) -> str:
    """Reports the excluded devices, the stages pinned to them, whose jobs fail, and the outcome of
    `--preload`.
    """
    without = f", without {', '.join(facts.excluded)}" if facts.excluded else ""
    failing = f": jobs that need {', '.join(facts.unplaceable)} fail" if facts.unplaceable else ""
    return "; ".join((f"ok{without}{failing}", *facts.preloaded))


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get(
        "/livez", responses=answers("the process responds", TEXT, "text/plain") | refusals()
    )
    async def alive() -> Response:
        return PlainTextResponse("ok\n")

    @routes.get(
        "/readyz", responses=answers("jobs are taken and run", TEXT, "text/plain") | refusals(503)
    )
    async def ready() -> Response:
        why = (
            "shutting down"
            if state.draining
            else state.runner.pending
            if not state.runner.ready
            else state.jobs.trouble or None
        )
        return PlainTextResponse(f"{why or _served(state.runner.facts)}\n", 503 if why else 200)

    @routes.get(
        "/metrics", responses=answers("figures for Prometheus", TEXT, "text/plain") | refusals()
    )
    async def metrics() -> Response:
        stats = None
        # reports the server's own metrics without a runner, and does not wait for one
        with contextlib.suppress(KatzError):
            stats = await state.runner.stats() if state.runner.ready else None
        text = generate_latest(state.metrics.registry) + generate_latest(
            figures(state.jobs, state.runner, stats)
        )
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return routes
