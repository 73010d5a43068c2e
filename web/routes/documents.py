"""Serves `/katz/open`, `/katz/check`, `/katz/plan`, `/katz/tokens` and `/katz/unfold`: operations
of an editor on a workflow before it is queued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from katz_graph.core.allowed_approximations import APPROXIMATIONS
from katz_graph.core.errors import InputError
from katz_graph.formats.image import Carried
from katz_graph.formats.ui_open import EditorDocument, check_editors_document, editors_document
from katz_graph.planner.written_step import WrittenStep
from katz_graph.web.http.access import origin_of
from katz_graph.web.http.answers import (
    CheckedWorkflow,
    CountedTexts,
    OpenedWorkflow,
    PlannedWorkflow,
    as_data,
)
from katz_graph.web.http.bodies import (
    PlanBody,
    PromptBody,
    TokensBody,
    UnfoldBody,
    unreadable,
)
from katz_graph.web.http.reading import read_graph, read_prompt, read_workflow_file
from katz_graph.web.http.responses import Refusal, json_answer
from katz_graph.web.routes.documented import answers, refusals, takes
from katz_graph.web.runner_client.facts import PlannedGraph
from katz_graph.web.runner_client.messages import Check, CountTokens, Draw, MakePlan, Unfold
from katz_graph.web.state import State

FILE = {"type": "string", "format": "binary", "description": "a workflow file or a picture"}
FORM = {"schema": {"type": "object", "properties": {"file": FILE}, "required": ["file"]}}
REFUSED: Mapping[str, tuple[int, str, float | None]] = {
    "replaced": (409, "replaced by a newer request of this client", None),
    "late": (503, "planning took too long", 10.0),
    "busy": (503, "too many plans are being made", 1.0),
}


def router(state: State) -> APIRouter:
    routes = APIRouter(prefix="/katz", tags=["editor"])

    @routes.post(
        "/open",
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    "multipart/form-data": FORM,
                },
            }
        },
        responses=answers("the workflow as editors open it", OpenedWorkflow) | refusals(503),
    )
    async def opened(request: Request) -> Response:
        """Open a workflow of any format, or a picture with one. An editor's workflow is returned
        unchanged.
        """
        found = await read_workflow_file(request, state.options.limits)
        document, notes = await _editor_document(found, state, origin_of(request))
        return json_answer(as_data(OpenedWorkflow(document, state.concealment.data(notes))))

    @routes.post(
        "/check",
        openapi_extra=takes(PromptBody),
        responses=answers("the response that queueing it would get", CheckedWorkflow)
        | refusals(503),
    )
    async def checked(request: Request) -> Response:
        """Check a body for `POST /prompt` without queueing it. `targets` are the outputs that would
        run; `error` is the reason if none would.
        """
        body = await read_prompt(request, state.options.limits)
        found = await state.runner.ask(
            Check(body.prompt, body.partial_execution_targets, origin=origin_of(request))
        )
        answer = CheckedWorkflow(
            found.error, found.node_errors, found.targets, found.refused, found.notes
        )
        return json_answer(state.concealment.data(as_data(answer)))

    @routes.post(
        "/plan",
        openapi_extra=takes(PlanBody),
        responses=answers("the plans of its samplers", PlannedWorkflow) | refusals(409, 503),
    )
    async def planned(request: Request) -> Response:
        """Plan every sampler on the devices that jobs use; no model runs. A client's newer request
        replaces the previous one, which gets 409. `devices`, `place`, `allow`, `link` and
        `batching` override the server's.
        """
        body = await read_graph(request, PlanBody, state.options.limits)
        found = await state.runner.ask(
            Check(body.prompt, body.partial_execution_targets, origin=origin_of(request))
        )
        made = PlannedGraph()
        if found.prompt is not None and found.error is None:
            made = await state.runner.ask(
                MakePlan(
                    found.prompt,
                    found.targets,
                    body.client_id,
                    body.packs,
                    body.changes.overrides(),
                    origin=origin_of(request),
                )
            )
            if made.refusal:
                status, message, wait = REFUSED[made.refusal]
                raise Refusal(status, message, made.refusal, retry_after=wait)
        answer = PlannedWorkflow(
            made.plans,
            found.error,
            found.node_errors,
            (*found.notes, *made.notes),
            APPROXIMATIONS,
        )
        return json_answer(state.concealment.data(as_data(answer)))

    @routes.post(
        "/tokens",
        openapi_extra=takes(TokensBody),
        responses=answers("the lengths of its prompts", CountedTexts) | refusals(503),
    )
    async def counted(request: Request) -> Response:
        """Count the tokens of each prompt for its linked text encoders. Omits texts with unknown
        encoders.
        """
        body = await read_graph(request, TokensBody, state.options.limits)
        sizes = await state.runner.ask(CountTokens(body.prompt, origin=origin_of(request)))
        return json_answer(asdict(CountedTexts(sizes)))

    @routes.post(
        "/unfold",
        openapi_extra=takes(UnfoldBody),
        responses=answers("its step as nodes", WrittenStep) | refusals(503),
    )
    async def unfolded(request: Request) -> Response:
        """Replace a sampler by the nodes of its step, which give the same picture. Runs no model
        and no node of a pack.
        """
        body = await read_graph(request, UnfoldBody, state.options.limits)
        written = await state.runner.ask(Unfold(body.prompt, body.node, origin=origin_of(request)))
        if written.step is None:
            raise Refusal(400, state.concealment.data(written.error), "not_unfolded")
        return json_answer(asdict(written.step))

    return routes


async def _editor_document(found: Carried, state: State, origin: str) -> EditorDocument:
    document = found.editor or editors_document(found.document)
    if document is None:
        made = await state.runner.ask(Draw(found.document, origin=origin))
        if made.error:
            raise unreadable(made.error)
        return made.document, made.notes
    try:
        await asyncio.to_thread(check_editors_document, document, state.options.limits.nodes)
    except InputError as error:
        raise unreadable(str(error)) from None
    return document, ()
