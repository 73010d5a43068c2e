"""Builds the OpenAPI descriptions of routes that parse their bodies themselves."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
NODE_ERROR = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "message": {"type": "string"},
        "details": {"type": "string"},
        "extra_info": {"type": "object"},
    },
    "required": ["type", "message", "details", "extra_info"],
}
PROMPT_ERROR = {
    "type": "object",
    "properties": {"error": NODE_ERROR, "node_errors": {"type": "object"}},
    "required": ["error", "node_errors"],
}
REASONS = {
    400: "the request is invalid",
    401: "a token is needed",
    403: "not allowed",
    404: "not found",
    409: "in conflict with the current state",
    408: "the body did not arrive in time",
    412: "the file has another version",
    413: "too large",
    415: "the type of the body is not supported",
    416: "the file does not have this range",
    429: "the queue is full, or the deadline cannot be met",
    503: "not available now",
    507: "the disk is full",
}
USUAL = (400, 401, 403, 408, 413, 415)  # statuses that any route may return


def refusals(*statuses: int, schema: dict[str, Any] = ERROR) -> dict[int | str, dict[str, Any]]:
    """Describes a route's errors, in addition to those that any route may return."""
    content = {"application/json": {"schema": schema}}
    return {
        status: {"description": REASONS[status], "content": content}
        for status in sorted({*USUAL, *statuses})
    }


def takes(
    model: type[BaseModel], required: bool = True, more: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Builds the `openapi_extra` of a route with this JSON body. `more`: other content types."""
    content = {"application/json": {"schema": model.model_json_schema()}} | (more or {})
    return {"requestBody": {"required": required, "content": content}}


def answers(
    description: str, schema: Any = None, media: str = "application/json"
) -> dict[int | str, dict[str, Any]]:
    """Describes a route's successful response by a JSON Schema or a Python type."""
    if schema is not None and not isinstance(schema, dict):
        return {200: {"description": description, "model": schema}}
    content = {"content": {media: {"schema": schema}}} if schema is not None else {}
    return {200: {"description": description, **content}}
