"""Reads the bodies of `POST /prompt`: JSON, a picture that carries a workflow, or a form with
either. Must not know what a graph means.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from katz_graph.errors import InputError
from katz_graph.formats.image import PNG, is_webp, workflow_from_picture
from katz_graph.web.http.responses import Refusal
from katz_graph.web.http.schemas import PromptBody, json_of, validated
from katz_graph.web.options import Limits

DOCUMENTS = ("workflow", "image", "prompt")  # fields of a form that may hold the graph
TEXTS = ("client_id", "prompt_id")  # fields that are text as they stand; the others are JSON
MOST_FIELDS = 16
KEY = re.compile(r"[\x21-\x7e]{1,255}")


async def read_prompt(request: Request, limits: Limits) -> PromptBody:
    """Reads any of the forms. Raises Refusal 400 when it is none of them or an id is malformed, 413
    when it has more than `limits.prompt_bytes` of JSON.
    """
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        data = await _form(request, limits)
    else:
        raw = await request.body()
        data = {"prompt": await workflow_in(raw, limits)} if is_picture(raw) else await _json(request, raw, limits)
    if isinstance(data, dict) and data.get("prompt") is None:
        raise Refusal(400, "No prompt provided", "no_prompt", "the body has no `prompt`")
    if isinstance(data, dict) and data.get("prompt_id") in (None, ""):
        data = {key: value for key, value in data.items() if key != "prompt_id"}
    elif isinstance(data, dict) and not is_canonical(data["prompt_id"]):
        raise Refusal(400, "prompt_id is not a UUID", "invalid_prompt_id", "expected a lowercase UUID with hyphens")
    body = validated(data, PromptBody)
    if not isinstance((body.extra_data or {}).get("extra_pnginfo", {}), dict | None):
        raise Refusal(400, "the body is not as expected", details="extra_data.extra_pnginfo: expected an object")
    return body


def idempotency_key(request: Request) -> str | None:
    """Returns the submission's Idempotency-Key. Raises Refusal 400 when it is no printable ASCII of
    at most 255 characters.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not KEY.fullmatch(key):
        raise Refusal(400, "Idempotency-Key is not as expected", details="expected 1 to 255 printable ASCII characters without spaces")
    return key


def is_canonical(value: Any) -> bool:
    """Checks that an id is a UUID as `str(uuid4())` writes it."""
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False


def is_picture(raw: bytes) -> bool:
    """Recognises PNG and WebP by content."""
    return raw.startswith(PNG) or is_webp(raw)


async def workflow_in(raw: bytes, limits: Limits) -> Any:
    """Reads the workflow that a picture carries. Raises Refusal 400 when there is none, 413 when it
    is too large.
    """
    try:
        workflow = await asyncio.to_thread(workflow_from_picture, raw)
    except InputError as error:
        raise Refusal(400, "the picture has no workflow", "no_prompt", str(error)) from None
    _check_size(len(await asyncio.to_thread(json.dumps, workflow)), limits)
    return workflow


async def _json(request: Request, raw: bytes, limits: Limits) -> Any:
    _check_size(len(raw), limits)
    return await json_of(request, raw)


def _check_size(count: int, limits: Limits) -> None:
    if count > limits.prompt_bytes:
        limit = f"more than this server's limit of {limits.prompt_bytes:,} (prompt_bytes)"
        raise Refusal(413, f"the graph and its extra data have {count:,} bytes, {limit}", "too_large")


async def _form(request: Request, limits: Limits) -> dict[str, Any]:
    data: dict[str, Any] = {}
    async with request.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=limits.body_bytes) as form:
        for name, value in form.multi_items():
            raw = await value.read() if isinstance(value, UploadFile) else value.encode()
            if name in DOCUMENTS:
                data["prompt"] = await (workflow_in(raw, limits) if is_picture(raw) else _json(request, raw, limits))
            elif name in PromptBody.model_fields:
                data[name] = raw.decode("utf-8", "replace") if name in TEXTS else await _json(request, raw, limits)
    return data
