"""Reads request bodies and parses them strictly. The body of `POST /prompt` may be JSON, a picture
with a workflow, or a form with either. Must not know the meaning of graphs.

Scripts send any content type or none, so only the body's content counts. Bodies are checked while
they arrive, spooled to disk if large, and parsed when complete, so that clients cannot fill the
memory.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from io import BytesIO
from tempfile import SpooledTemporaryFile
from typing import IO, Any, BinaryIO, cast

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.types import Message

from katz_graph.core.errors import InputError
from katz_graph.formats.image import PNG, Carried, is_webp, workflow_from_picture
from katz_graph.formats.read import read_document
from katz_graph.formats.strict_json import TooLarge, parse_json
from katz_graph.web.http.access import origin_of
from katz_graph.web.http.bodies import Model, PromptBody, is_canonical, unreadable, validated
from katz_graph.web.http.body_limits import HELD
from katz_graph.web.http.responses import Refusal
from katz_graph.web.http.turns import Turns
from katz_graph.web.options import KB, Limits

DOCUMENTS = ("workflow", "image", "prompt")  # form fields that may hold the graph
TEXTS = ("client_id", "prompt_id")  # plain-text form fields; other fields are JSON
MAX_FIELDS = 16
LARGE_BODY_BYTES = 64 * KB  # larger bodies are parsed outside the event loop
MEMORY_BYTES = 256 * KB  # of an arriving body; the rest goes to disk
READ_BYTES = 64 * KB  # of one read
# requests with a large body in memory, parsed or not, until they are answered: parsed data takes
# many times the memory of its text
LARGE_AT_ONCE = 4
PARSED_AT_ONCE = 2  # large bodies; parsing blocks other threads
MAX_WAIT_S = 30.0  # for a place among the large bodies
PICTURE_HEAD_BYTES = 12  # bytes needed to recognize a picture
LARGE_BODY_KEY = "katz.large"  # scope key: the request holds a place among the large bodies
NO_NUMBERS = (b"NaN", b"Infinity")  # Python parses them as numbers, but JSON does not have them


class Reading:
    """Limits the large bodies that one server holds in memory and parses concurrently. Addresses
    take turns.
    """

    def __init__(self) -> None:
        self._large, self._parsed = Turns(LARGE_AT_ONCE), Turns(PARSED_AT_ONCE)

    async def hold(self, request: Request) -> None:
        """Takes a place among the large requests until this one is answered. Raises Refusal 503 if
        no place becomes free in time.
        """
        address = origin_of(request)
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                await self._large.enter(address)
        except TimeoutError:
            raise Refusal(
                503, "too many large requests are being answered", "busy", retry_after=1
            ) from None
        request.scope[HELD].callback(self._large.leave, address)

    def parsing(self, request: Request) -> AbstractAsyncContextManager[None]:
        """Waits for a turn to parse a body, and holds it."""
        return self._parsed.turn(origin_of(request))


async def read_body(request: Request, model: type[Model], empty_is_default: bool = False) -> Model:
    """Parses the body into a model. Raises Refusal 400 with the received and the expected form.
    `empty_is_default`: an empty body counts as `{}`, as in ComfyUI.
    """
    raw = (await _arrived(request)).read()
    if empty_is_default and not raw.strip():
        return model()
    return validated(await _parsed(request, raw), model)


async def read_json(request: Request) -> Any:
    """Parses a body of any JSON. Raises Refusal 400 with the position of the error."""
    return await _parsed(request, (await _arrived(request)).read())


async def read_graph(request: Request, model: type[Model], limits: Limits) -> Model:
    """Parses a JSON body with a graph, like `read_body`. Raises Refusal 413 if it is too large."""
    raw = (await _arrived(request, limits)).read()
    _check_size(len(raw), limits)
    return validated(await _parsed(request, raw), model)


async def read_prompt(request: Request, limits: Limits) -> PromptBody:
    """Parses the body of `POST /prompt` in any of its forms. Raises Refusal 400 if it has none of
    them or an id is malformed, and 413 if it has more than `limits.prompt_bytes` of JSON.
    """
    if _is_form(request):
        data = await _form(request, limits)
    else:
        file = await _arrived(request, limits)
        data = (
            {"prompt": await _workflow_in(request, file, limits)}
            if _is_picture(file)
            else await _parsed(request, file.read())
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
            "the body is invalid",
            details="extra_data.extra_pnginfo: expected an object",
        )
    return body


async def read_workflow_file(request: Request, limits: Limits) -> Carried:
    """Reads a workflow file of any kind: the body itself, or the first part of a form. Raises
    Refusal 400 with the file's problems, and 413 for more than `limits.prompt_bytes` of JSON.
    """
    if not _is_form(request):
        return await _document(request, await _arrived(request, limits), limits)
    whole = await _whole_form(request)
    async with whole.form(max_files=1, max_fields=1, max_part_size=limits.body_bytes) as form:
        part = next(iter(form.values()), "")
        file = part.file if isinstance(part, UploadFile) else BytesIO(part.encode())
        return await _document(request, file, limits)


async def _document(request: Request, file: IO[bytes], limits: Limits) -> Carried:
    await _hold(request)
    async with _reading(request).parsing(request):
        try:
            return await asyncio.to_thread(read_document, cast(BinaryIO, file), limits.prompt_bytes)
        except TooLarge as error:
            raise _too_large(str(error), limits) from None
        except InputError as error:
            raise unreadable(str(error)) from None


async def _arrived(request: Request, limits: Limits | None = None) -> IO[bytes]:
    """Receives the whole body. With `limits`, raises Refusal 413 as soon as a body other than a
    picture exceeds `prompt_bytes`.
    """
    file = SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115  (the request holds it)
    request.scope[HELD].callback(file.close)
    head, size = b"", 0
    expected = announced_bytes(request)
    async for piece in request.stream():
        size += len(piece)
        head += piece[: PICTURE_HEAD_BYTES - len(head)]
        if limits is not None and len(head) == PICTURE_HEAD_BYTES and not is_picture(head):
            _check_size(max(size, expected), limits)
        if size > MEMORY_BYTES:
            await asyncio.to_thread(file.write, piece)
        else:
            file.write(piece)
    file.seek(0)
    if size > LARGE_BODY_BYTES:
        await _hold(request)
    return file


def announced_bytes(request: Request) -> int:
    """Returns the announced length of a body; 0 if none is announced."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


def is_picture(head: bytes) -> bool:
    """Recognizes PNG and WebP by their first bytes."""
    return head.startswith(PNG) or is_webp(head)


def _is_picture(file: IO[bytes]) -> bool:
    head = file.read(PICTURE_HEAD_BYTES)
    file.seek(0)
    return is_picture(head)


def _is_form(request: Request) -> bool:
    return request.headers.get("content-type", "").startswith("multipart/form-data")


async def _whole_form(request: Request) -> Request:
    """Receives the body of a form, and returns a request that replays it."""
    file = await _arrived(request)

    async def receive() -> Message:
        piece = file.read(READ_BYTES)
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    return Request(request.scope, receive)


async def _form(request: Request, limits: Limits) -> dict[str, Any]:
    data: dict[str, Any] = {}
    whole, texts = await _whole_form(request), 0
    async with whole.form(
        max_files=1, max_fields=MAX_FIELDS, max_part_size=limits.body_bytes
    ) as form:
        for name, value in form.multi_items():
            file = value.file if isinstance(value, UploadFile) else BytesIO(value.encode())
            if name in DOCUMENTS and _is_picture(file):
                data["prompt"] = await _workflow_in(request, file, limits)
                continue
            if name not in DOCUMENTS and name not in PromptBody.model_fields:
                continue
            raw = file.read(limits.prompt_bytes + 1)
            texts += len(raw)
            _check_size(texts, limits)
            data["prompt" if name in DOCUMENTS else name] = (
                raw.decode("utf-8", "replace") if name in TEXTS else await _parsed(request, raw)
            )
    return data


async def _workflow_in(request: Request, file: IO[bytes], limits: Limits) -> Any:
    """Reads the workflow embedded in a picture. Raises Refusal 400 if there is none, and 413 if it
    is too large.
    """
    await _hold(request)
    async with _reading(request).parsing(request):
        try:
            return await asyncio.to_thread(
                workflow_from_picture, cast(BinaryIO, file), limits.prompt_bytes
            )
        except TooLarge as error:
            raise _too_large(f"the picture {error}", limits) from None
        except InputError as error:
            raise Refusal(400, "the picture has no workflow", "no_prompt", str(error)) from None


async def _parsed(request: Request, raw: bytes) -> Any:
    if len(raw) <= LARGE_BODY_BYTES:
        return _parse(raw)
    async with _reading(request).parsing(request):
        return await asyncio.to_thread(_parse, raw)


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
    except TooLarge as error:
        raise Refusal(413, f"the body {error}", "too_large") from None
    except InputError as error:
        raise Refusal(400, "the body is not JSON", details=str(error)) from None
    except ValueError:
        raise Refusal(
            400, "the body is not JSON", details="NaN and Infinity are not JSON numbers"
        ) from None


def _reading(request: Request) -> Reading:
    reading: Reading = request.app.state.reading
    return reading


async def _hold(request: Request) -> None:
    """Takes a place among the large bodies, once per request."""
    if not request.scope.get(LARGE_BODY_KEY):
        await _reading(request).hold(request)
        request.scope[LARGE_BODY_KEY] = True


def _check_size(size: int, limits: Limits) -> None:
    if size > limits.prompt_bytes:
        raise _too_large(f"the graph and its extra data have {size:,} bytes", limits)


def _too_large(what: str, limits: Limits) -> Refusal:
    limit = f"this server's limit is {limits.prompt_bytes:,} bytes of JSON (prompt_bytes)"
    return Refusal(413, f"{what}; {limit}", "too_large")
