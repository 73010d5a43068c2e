"""Serves `/prompt`, where clients submit graphs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.core.errors import InputError
from katz_graph.planner.changes import needed, permissions
from katz_graph.web.http.access import origin_of
from katz_graph.web.http.bodies import (
    ChoicesBody,
    PromptBody,
    idempotency_key,
    validated,
)
from katz_graph.web.http.job_views import PRIVATE, place_number
from katz_graph.web.http.reading import read_prompt
from katz_graph.web.http.responses import Refusal, json_answer
from katz_graph.web.jobs.admission import Refused
from katz_graph.web.jobs.job import Submission
from katz_graph.web.routes.documented import PROMPT_ERROR, answers, refusals, takes
from katz_graph.web.runner_client.messages import CHOICES, Check
from katz_graph.web.state import State

log = logging.getLogger("katz.web")
BINARY = {"schema": {"type": "string", "contentMediaType": "application/octet-stream"}}
FORM = {
    "schema": {
        "type": "object",
        "properties": {
            "workflow": {"type": "string", "description": "a graph in any format"},
            "image": {
                "type": "string",
                "format": "binary",
                "description": "a picture that carries a workflow",
            },
            "client_id": {"type": "string"},
            "prompt_id": {"type": "string"},
        },
    }
}
ACCEPTED = {
    "type": "object",
    "properties": {
        "prompt_id": {"type": "string"},
        "number": {"type": "number"},
        "node_errors": {"type": "object"},
    },
    "required": ["prompt_id", "number", "node_errors"],
}


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["queue"])

    @routes.get("/prompt", responses=answers("the number of queued jobs") | refusals())
    async def remaining() -> Response:
        return json_answer(
            {"exec_info": {"queue_remaining": len(state.jobs.pending) + len(state.jobs.running)}}
        )

    @routes.post(
        "/prompt",
        openapi_extra=takes(PromptBody, more={"image/png": BINARY, "multipart/form-data": FORM}),
        responses=answers("the job is in the queue and survives a crash", ACCEPTED)
        | refusals(409, 429, 503, schema=PROMPT_ERROR),
    )
    async def submit(request: Request) -> Response:
        """Queue a graph. With an `Idempotency-Key`, sending the same body again returns the first
        job.
        """
        arrived, key = time.time(), idempotency_key(request)
        body = await read_prompt(request, state.options.limits)
        try:
            if state.draining:
                raise Refusal(
                    503,
                    "the server is shutting down",
                    "shutting_down",
                    retry_after=state.options.drain_seconds,
                )
            _check_choices(body.extra_data or {}, permissions(state.options.permit))
            origin = origin_of(request)
            await state.jobs.admit(body.client_id, key, origin)
            checked = await state.runner.ask(
                Check(body.prompt, body.partial_execution_targets, origin=origin)
            )
            node_errors = state.concealment.data(checked.node_errors)
            if checked.prompt is None or checked.error is not None:
                return json_answer(
                    {"error": state.concealment.data(checked.error), "node_errors": node_errors},
                    400,
                )
            job = await state.jobs.submit(
                Submission(
                    prompt=checked.prompt,
                    targets=checked.targets,
                    id=body.prompt_id,
                    client=body.client_id,
                    extra=_extra(body, checked.workflow),
                    number=body.number,
                    front=body.front,
                    deadline=None
                    if body.deadline_seconds is None
                    else arrived + body.deadline_seconds,
                    key=key,
                    origin=origin,
                )
            )
        except Refused as refused:
            state.metrics.refused(refused.kind)
            raise
        log.info("job %s: accepted", job.id)
        return json_answer(
            {"prompt_id": job.id, "number": place_number(job), "node_errors": node_errors}
        )

    return routes


def _extra(body: PromptBody, workflow: Any) -> dict[str, Any]:
    """Returns the extra data without secrets; adds the prompt if it was an editor's document."""
    extra = {name: value for name, value in (body.extra_data or {}).items() if name not in PRIVATE}
    if workflow is not None:
        extra["extra_pnginfo"] = {**(extra.get("extra_pnginfo") or {}), "workflow": workflow}
    return extra


def _check_choices(extra: Mapping[str, Any], permitted: frozenset[str]) -> None:
    """Raises Refusal for plan changes that cannot run, or that the operator does not permit."""
    changes = validated(extra.get(CHOICES) or {}, ChoicesBody).changes
    try:
        asked = needed(changes)
    except InputError as error:
        raise Refusal(400, f"extra_data.{CHOICES}: {error}", "invalid_choice") from None
    if changes.hypothetical:
        raise Refusal(
            400,
            "a job can only use devices and links that exist; plan with others instead",
            "invalid_choice",
        )
    for name in sorted(asked - permitted):
        raise Refusal(
            403,
            f"this server does not let jobs choose {name}; add {name} to --permit to allow it",
            "not_permitted",
        )
