"""Parses bodies of requests strictly. Clients may name any content type or none, as scripts do; the
body has to be right.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from starlette.requests import Request

from katz_graph.errors import InputError
from katz_graph.formats.strict_json import parse_json
from katz_graph.web.http.responses import Refusal

MOST_IDS = 10_000
LARGE = 2**16  # bytes from which on a body is parsed beside the event loop
PARSED_AT_ONCE = 2  # of those; parsing keeps other threads waiting, and data takes many times the memory of its text
NO_NUMBERS = (b"NaN", b"Infinity")  # which Python reads as numbers and JSON has not

Id = Field(max_length=200)
Model = TypeVar("Model", bound=BaseModel)


class Body(BaseModel):
    """Fields that are not known are left alone: clients send more than a server reads."""

    model_config = ConfigDict(strict=True, extra="ignore")


class PromptBody(Body):
    """`POST /prompt`. `prompt` is a graph in API format or a workflow as the editor saves it (a
    dict with `nodes`).
    """

    prompt: dict[str, Any]
    client_id: str | None = Field(None, max_length=200)
    prompt_id: str | None = Field(None, description="a lowercase UUID with hyphens; minted if there is none", max_length=200)
    extra_data: dict[str, Any] | None = None
    number: FiniteFloat | None = Field(None, description="place in the queue, lowest first")
    front: bool = False
    partial_execution_targets: list[str] | None = Field(None, max_length=MOST_IDS)
    deadline_seconds: FiniteFloat | None = Field(None, gt=0, description="refused at arrival if it cannot be met")


class ForgetBody(Body):
    """`POST /queue` and `POST /history`: all, or these."""

    clear: bool = False
    delete: list[str] = Field([], max_length=MOST_IDS)


class InterruptBody(Body):
    prompt_id: str | None = Field(None, max_length=200)


class FreeBody(Body):
    unload_models: bool = False
    free_memory: bool = False


class CancelBody(Body):
    job_ids: list[str] = Field(max_length=MOST_IDS)


class MoveBody(Body):
    """`POST /katz/jobs/{id}/move`: exactly one of these."""

    front: bool = False
    before: str | None = Field(None, max_length=200)
    number: FiniteFloat | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.front + (self.before is not None) + (self.number is not None) != 1:
            raise ValueError("give exactly one of front, before and number")
        return self


async def read_body(request: Request, model: type[Model], empty_is_default: bool = False) -> Model:
    """Parses the body into a model. Raises Refusal 400 with what came and what was expected; an
    empty body counts as `{}` where ComfyUI takes it so.
    """
    raw = await request.body()
    if empty_is_default and not raw.strip():
        return model()
    return validated(await json_of(request, raw), model)


async def json_of(request: Request, raw: bytes) -> Any:
    """Parses a JSON body, or a part of one. Raises Refusal 400 with the place of the fault."""
    if len(raw) <= LARGE:
        return _parse(raw)
    async with request.app.state.parsing:
        return await asyncio.to_thread(_parse, raw)


def validated(data: Any, model: type[Model]) -> Model:
    """Validates plain data into a model. Raises Refusal 400 with a line a problem."""
    if not isinstance(data, dict):
        raise Refusal(400, "the body is not a JSON object", details=f"got {_kind(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, entry['loc'])) or 'body'}: {entry['msg']}" for entry in error.errors()[:10]]
        raise Refusal(400, "the body is not as expected", details="\n".join(problems)) from None


def _parse(raw: bytes) -> Any:
    try:
        data = parse_json(raw.decode("utf-8-sig"))
        if any(constant in raw for constant in NO_NUMBERS):
            json.dumps(data, allow_nan=False)
        return data
    except UnicodeDecodeError as error:
        raise Refusal(400, "the body is not JSON", details=f"not UTF-8 at byte {error.start}") from None
    except InputError as error:
        raise Refusal(400, "the body is not JSON", details=str(error)) from None
    except ValueError:
        raise Refusal(400, "the body is not JSON", details="NaN and Infinity are no numbers of JSON") from None


def _kind(data: Any) -> str:
    return {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(type(data), "a number")
