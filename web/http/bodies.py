"""Declares and validates the JSON bodies of requests. Must not know how bodies arrive or the
meaning of graphs.
"""

from __future__ import annotations

import re
import uuid
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from pydantic_core import ErrorDetails
from starlette.requests import Request

from katz_graph.core.messages import nearest, one_line, shorten
from katz_graph.ir.changes import PlanChanges
from katz_graph.web.http.responses import Refusal

KEY = re.compile(r"[\x21-\x7e]{1,255}")
MAX_IDS = 10_000
MAX_FILES = 1_000

Id = Field(max_length=200)
Model = TypeVar("Model", bound=BaseModel)


ShortText = Annotated[str, Field(max_length=200)]
MAX_CHOICES = 64


class Body(BaseModel):
    """Ignores unknown fields, because clients send more than a server reads."""

    model_config = ConfigDict(strict=True, extra="ignore")


class OwnBody(Body):
    """A body of a route that ComfyUI does not have. Refuses unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid")


class PromptBody(Body):
    """`POST /prompt`. `prompt` is a graph in API format or a workflow as the editor saves it (a
    dict with `nodes`).
    """

    prompt: dict[str, Any]
    client_id: str | None = Field(None, max_length=200)
    prompt_id: str | None = Field(
        None, description="a lowercase UUID with hyphens; generated if absent", max_length=200
    )
    extra_data: dict[str, Any] | None = None
    number: FiniteFloat | None = Field(None, description="place in the queue, lowest first")
    front: bool = False
    partial_execution_targets: list[str] | None = Field(None, max_length=MAX_IDS)
    deadline_seconds: FiniteFloat | None = Field(
        None, gt=0, description="the job is refused on arrival if it cannot end in this time"
    )


class ChoicesBody(OwnBody):
    """Plan changes: devices, limits and batching that override the server's, in the syntax of `katz
    plan`. A job has them in `extra_data.katz` of `POST /prompt`.
    """

    devices: list[ShortText] = Field(
        [], max_length=MAX_CHOICES, description="device names, or NAME*N for N equal devices"
    )
    place: list[ShortText] = Field([], max_length=MAX_CHOICES, description="STAGE=DEVICE")
    allow: str | None = Field(None, max_length=200)
    link: str | None = Field(None, max_length=200, description="GBPS[,MS]")
    batching: bool | None = None

    @property
    def changes(self) -> PlanChanges:
        devices, place = tuple(self.devices), tuple(self.place)
        return PlanChanges(devices, place, self.allow, self.link, self.batching)


class PlanBody(ChoicesBody):
    """`POST /katz/plan`. `packs`: pack nodes may run. The changes apply only to this plan."""

    prompt: dict[str, Any]
    client_id: str | None = Field(None, max_length=200)
    partial_execution_targets: list[str] | None = Field(None, max_length=MAX_IDS)
    packs: bool = False


class TokensBody(OwnBody):
    """`POST /katz/tokens`: a workflow of any format."""

    prompt: dict[str, Any]


class UnfoldBody(TokensBody):
    """`POST /katz/unfold`. `node`: the sampler's id in events."""

    node: str = Field(max_length=200)


class ForgetBody(Body):
    """`POST /queue` and `POST /history`: removes all jobs (`clear`) or those in `delete`."""

    clear: bool = False
    delete: list[str] = Field([], max_length=MAX_IDS)


class InterruptBody(Body):
    prompt_id: str | None = Field(None, max_length=200)


class FreeBody(Body):
    unload_models: bool = False
    free_memory: bool = False


class CancelBody(Body):
    job_ids: list[str] = Field(max_length=MAX_IDS)


class FilesBody(OwnBody):
    """`POST /katz/files/trash` and `/katz/files/restore`."""

    names: list[str] = Field(max_length=MAX_FILES)
    type: Literal["input", "output"] = "output"


class PresenceBody(OwnBody):
    """`POST /katz/presence`: a page, by a self-chosen id, and its open files."""

    page: str = Field(min_length=1, max_length=200)
    name: str = Field("", max_length=60, description="the user's display name")
    files: list[Annotated[str, Field(max_length=1024)]] = Field(max_length=100)


class MoveBody(OwnBody):
    """`POST /katz/jobs/{id}/move`: sets exactly one field."""

    front: bool = False
    before: str | None = Field(None, max_length=200)
    number: FiniteFloat | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.front + (self.before is not None) + (self.number is not None) != 1:
            raise ValueError("give exactly one of front, before and number")
        return self


def validated(data: Any, model: type[Model]) -> Model:
    """Validates plain data into a model. Raises Refusal 400 with one line per problem."""
    if not isinstance(data, dict):
        raise Refusal(400, "the body is not a JSON object", details=f"got {_kind(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_problem(entry, model) for entry in error.errors()[:10]]
        raise Refusal(400, "the body is invalid", details="\n".join(problems)) from None


def _problem(entry: ErrorDetails, model: type[BaseModel]) -> str:
    place = one_line(shorten(".".join(map(str, entry["loc"])))) or "body"
    if entry["type"] != "extra_forbidden":
        return f"{place}: {entry['msg']}"
    near = nearest(place, model.model_fields)
    return f"{place}: unknown field" + (f"; did you mean {near!r}?" if near else "")


def _kind(data: Any) -> str:
    return {list: "a list", str: "a text", bool: "true or false", type(None): "null"}.get(
        type(data), "a number"
    )


def unreadable(problems: str) -> Refusal:
    """Returns the refusal of a workflow file, with one line per problem."""
    return Refusal(400, "the file cannot be opened", "invalid_workflow", problems)


def idempotency_key(request: Request) -> str | None:
    """Returns the submission's Idempotency-Key. Raises Refusal 400 if it is not printable ASCII of
    at most 255 characters.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not KEY.fullmatch(key):
        raise Refusal(
            400,
            "Idempotency-Key is invalid",
            details="expected 1 to 255 printable ASCII characters without spaces",
        )
    return key


def is_canonical(value: Any) -> bool:
    """Returns whether an id is a UUID in the form of `str(uuid4())`."""
    try:
        return isinstance(value, str) and str(uuid.UUID(value)) == value
    except ValueError:
        return False
