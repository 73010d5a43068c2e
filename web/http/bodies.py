"""Reads bodies of requests and parses them strictly; that of `POST /prompt` may be JSON, a picture
that carries a workflow, or a form with either. Must not know what a graph means.

Clients may name any content type or none, as scripts do; the body has to be right.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
import uuid
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from starlette.datastructures import UploadFile
from starlette.requests import Request

from katz_graph.errors import InputError
from katz_graph.formats.image import PNG, Carried, is_webp, workflow_from_picture
from katz_graph.formats.read import read_document
from katz_graph.formats.strict_json import parse_json
from katz_graph.ir.changes import PlanChanges
from katz_graph.web.http.responses import Refusal
from katz_graph.web.options import Limits

DOCUMENTS = ("workflow", "image", "prompt")  # fields of a form that may hold the graph
TEXTS = ("client_id", "prompt_id")  # fields that are text as they stand; the others are JSON
MOST_FIELDS = 16
KEY = re.compile(r"[\x21-\x7e]{1,255}")
MOST_IDS = 10_000
MOST_FILES = 1_000
LARGE = 2**16  # bytes from which on a body is parsed beside the event loop
# of those; parsing keeps other threads waiting, and data takes many times the memory of its text
PARSED_AT_ONCE = 2
NO_NUMBERS = (b"NaN", b"Infinity")  # which Python reads as numbers and JSON has not

Id = Field(max_length=200)
Model = TypeVar("Model", bound=BaseModel)


ShortText = Annotated[str, Field(max_length=200)]
MOST_CHOICES = 64


class Body(BaseModel):
    """Fields that are not known are left alone: clients send more than a server reads."""

    model_config = ConfigDict(strict=True, extra="ignore")


class PromptBody(Body):
    """`POST /prompt`. `prompt` is a graph in API format or a workflow as the editor saves it (a
    dict with `nodes`).
    """

    prompt: dict[str, Any]
    client_id: str | None = Field(None, max_length=200)
    prompt_id: str | None = Field(
        None, description="a lowercase UUID with hyphens; minted if there is none", max_length=200
    )
    extra_data: dict[str, Any] | None = None
    number: FiniteFloat | None = Field(None, description="place in the queue, lowest first")
    front: bool = False
    partial_execution_targets: list[str] | None = Field(None, max_length=MOST_IDS)
    deadline_seconds: FiniteFloat | None = Field(
        None, gt=0, description="refused at arrival if it cannot be met"
    )


class ChoicesBody(Body):
    """Devices, limits and batching in place of what jobs have; what is left out stays. Texts are
    those of `katz plan`. For a job in `extra_data.katz` of `POST /prompt`.
    """

    devices: list[ShortText] = Field(
        [], max_length=MOST_CHOICES, description="names, and NAME*N for so many like one"
    )
    place: list[ShortText] = Field([], max_length=MOST_CHOICES, description="STAGE=DEVICE")
    allow: str | None = Field(None, max_length=200)
    link: str | None = Field(None, max_length=200, description="GBPS[,MS]")
    batching: bool | None = None

    @property
    def changes(self) -> PlanChanges:
        devices, place = tuple(self.devices), tuple(self.place)
        return PlanChanges(devices, place, self.allow, self.link, self.batching)


class PlanBody(ChoicesBody):
    """`POST /katz/plan`. `packs`: nodes of packs may run for it. The choices are what if."""

    prompt: dict[str, Any]
    client_id: str | None = Field(None, max_length=200)
    partial_execution_targets: list[str] | None = Field(None, max_length=MOST_IDS)
    packs: bool = False


class TokensBody(Body):
    """`POST /katz/tokens`: a workflow of any format."""

    prompt: dict[str, Any]


class UnfoldBody(TokensBody):
    """`POST /katz/unfold`. `node`: the sampler, as events call it."""

    node: str = Field(max_length=200)


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


class FilesBody(Body):
    """`POST /katz/files/trash` and `/katz/files/restore`."""

    names: list[str] = Field(max_length=MOST_FILES)
    type: Literal["input", "output"] = "output"


class PresenceBody(Body):
    """`POST /katz/presence`: a page, by an id that it made, with the files that it has open."""

    page: str = Field(min_length=1, max_length=200)
    name: str = Field("", max_length=60, description="what the person is called")
    files: list[Annotated[str, Field(max_length=1024)]] = Field(max_length=100)


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
        problems = [
            f"{'.'.join(map(str, entry['loc'])) or 'body'}: {entry['msg']}"
            for entry in error.errors()[:10]
        ]
        raise Refusal(400, "the body is not as expected", details="\n".join(problems)) from None


def _parse(raw: bytes) -> Any:
    try:
        data = parse_json(raw.decode("utf-8-sig"))
        if any(constant in raw for constant in NO_NUMBERS):
            json.dumps(data, allow_nan=False)
        return data
    except UnicodeDecodeError as error:
        raise Refusal(
            400, "the body is not JSON", details=f"not UTF-8 at byte {error.start}"
        ) from None
    except InputError as error:
        raise Refusal(400, "the body is not JSON", details=str(error)) from None
    except ValueError:
        raise Refusal(
            400, "the body is not JSON", details="NaN and Infinity are no numbers of JSON"
        ) from None


def _kind(data: Any) -> str:
    return {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(
        type(data), "a number"
    )


async def read_prompt(request: Request, limits: Limits) -> PromptBody:
    """Reads any of the forms. Raises Refusal 400 when it is none of them or an id is malformed, 413
    when it has more than `limits.prompt_bytes` of JSON.
    """
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        data = await _form(request, limits)
    else:
        raw = await request.body()
        data = (
            {"prompt": await workflow_in(raw, limits)}
            if is_picture(raw)
            else await _json(request, raw, limits)
        )
    if isinstance(data, dict) and data.get("prompt") is None:
        raise Refusal(400, "No prompt provided", "no_prompt", "the body has no `prompt`")
    if isinstance(data, dict) and data.get("prompt_id") in (None, ""):
        data = {key: value for key, value in data.items() if key != "prompt_id"}
    elif isinstance(data, dict) and not is_canonical(data["prompt_id"]):
        raise Refusal(
            400,
            "prompt_id is not a UUID",
            "invalid_prompt_id",
            "expected a lowercase UUID with hyphens",
        )
    body = validated(data, PromptBody)
    if not isinstance((body.extra_data or {}).get("extra_pnginfo", {}), dict | None):
        raise Refusal(
            400,
            "the body is not as expected",
            details="extra_data.extra_pnginfo: expected an object",
        )
    return body


async def read_graph(request: Request, model: type[Model], limits: Limits) -> Model:
    """Parses a JSON body that holds a graph, as `read_body`; Refusal 413 when it is too large."""
    return validated(await _json(request, await request.body(), limits), model)


async def read_workflow_file(request: Request, limits: Limits) -> Carried:
    """Reads a workflow file of any kind: the body itself, or the first part of a form. Raises
    Refusal 400 with what is wrong with it, 413 for more than `limits.prompt_bytes` of JSON.
    """
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        async with request.form(max_files=1, max_fields=1, max_part_size=limits.body_bytes) as form:
            part = next(iter(form.values()), "")
            raw = await part.read() if isinstance(part, UploadFile) else part.encode()
    else:
        raw = await request.body()
    if not is_picture(raw):
        _check_size(len(raw), limits)
    async with request.app.state.parsing:
        try:
            found = await asyncio.to_thread(read_document, io.BytesIO(raw))
        except InputError as error:
            raise unreadable(str(error)) from None
    return found


def unreadable(problems: str) -> Refusal:
    """Refuses a workflow file, with a line for each problem."""
    return Refusal(400, "the file cannot be opened", "invalid_workflow", problems)


def idempotency_key(request: Request) -> str | None:
    """Returns the submission's Idempotency-Key. Raises Refusal 400 when it is no printable ASCII of
    at most 255 characters.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not KEY.fullmatch(key):
        raise Refusal(
            400,
            "Idempotency-Key is not as expected",
            details="expected 1 to 255 printable ASCII characters without spaces",
        )
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
        raise Refusal(
            413, f"the graph and its extra data have {count:,} bytes, {limit}", "too_large"
        )


async def _form(request: Request, limits: Limits) -> dict[str, Any]:
    data: dict[str, Any] = {}
    async with request.form(
        max_files=1, max_fields=MOST_FIELDS, max_part_size=limits.body_bytes
    ) as form:
        for name, value in form.multi_items():
            raw = await value.read() if isinstance(value, UploadFile) else value.encode()
            if name in DOCUMENTS:
                data["prompt"] = await (
                    workflow_in(raw, limits) if is_picture(raw) else _json(request, raw, limits)
                )
            elif name in PromptBody.model_fields:
                data[name] = (
                    raw.decode("utf-8", "replace")
                    if name in TEXTS
                    else await _json(request, raw, limits)
                )
    return data
