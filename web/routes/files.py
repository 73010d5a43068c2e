"""Serves `/view`, `/upload`, `/view_metadata`: users' pictures, and the metadata of models."""

from __future__ import annotations

import asyncio
import hashlib
import io
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import anyio
from fastapi import APIRouter, Query
from safetensors import SafetensorError, safe_open
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import NotModifiedResponse

from katz_graph.core.errors import InputError
from katz_graph.files.folders import Folders
from katz_graph.files.weights import is_weights
from katz_graph.web.files.paths import NAME_BYTES, Place, find_user_file
from katz_graph.web.files.pictures import (
    Channel,
    Preview,
    Thumbnails,
    checked_format,
    shown,
    with_alpha_of,
)
from katz_graph.web.files.uploads import PARTS, Upload, described, keep_picture, picture_name
from katz_graph.web.http.file_responses import GUARDED, stored_file
from katz_graph.web.http.preconditions import is_known, tag_of
from katz_graph.web.http.responses import Refusal, json_answer
from katz_graph.web.routes.documented import answers, refusals
from katz_graph.web.routes.models import known_kind
from katz_graph.web.state import State

PREVIEW = re.compile(r"([a-z]*)(?:;([0-9]{1,3}))?")
PREVIEW_QUALITY = 90
AT_ONCE = 2  # concurrently decoded pictures: a large one takes 256 MB
VIEWED: dict[int | str, dict[str, Any]] = {
    200: {"description": "the file", "content": {"image/*": {}, "application/octet-stream": {}}},
    304: {"description": "the client has this version"},
}
STORED = answers(
    "the name of the stored picture, for LoadImage",
    {
        "type": "object",
        "properties": {key: {"type": "string"} for key in ("name", "subfolder", "type")},
        "required": ["name"],
    },
)

Name = Annotated[str, Query(max_length=NAME_BYTES)]
Result = TypeVar("Result")


def router(state: State) -> APIRouter:
    routes = APIRouter(tags=["files"])
    limits = state.options.limits
    decoders = anyio.CapacityLimiter(AT_ONCE)
    thumbnails = Thumbnails()

    async def decoded(work: Callable[[], Result]) -> Result:
        return await anyio.to_thread.run_sync(work, limiter=decoders)

    async def keep(upload: Upload, content: io.BytesIO | None, kind: str) -> Response:
        folder, name = upload.folder(state.folders), picture_name(upload.name, kind)
        if content is not None and not name.lower().endswith(".png"):
            name += ".png"
        stored = await asyncio.to_thread(
            keep_picture, content or upload.file, folder, name, upload.overwrite
        )
        return json_answer({"name": stored, "subfolder": upload.subfolder, "type": upload.place})

    @routes.get("/view", responses=VIEWED | refusals(404, 416), response_class=Response)
    async def view(
        request: Request,
        filename: Name,
        type: Place = "output",
        subfolder: Name = "",
        preview: Annotated[
            str,
            Query(
                max_length=20,
                description="`webp;90` or `jpeg;90`: the picture in that format and quality",
            ),
        ] = "",
        channel: Channel = "rgba",
        width: Annotated[
            int, Query(ge=0, le=4096, description="maximum width in pixels; 0: no limit")
        ] = 0,
    ) -> Response:
        path, found = await asyncio.to_thread(
            find_user_file, state.folders, filename, subfolder, type
        )
        wanted = _preview(preview)
        if wanted is None and channel == "rgba" and not width:
            return await stored_file(request, path)
        version = f"{tag_of(found)} {wanted} {channel} {width}"
        tag = hashlib.sha256(version.encode()).hexdigest()[:32]
        headers = {**GUARDED, "ETag": f'"{tag}"'}
        if is_known(request, headers["ETag"]):
            return NotModifiedResponse(Response(headers=headers).headers)
        key = (path, tag)
        made = thumbnails.get(key)
        if made is None:
            made = await decoded(lambda: shown(path, wanted, channel, limits.upload_pixels, width))
            if width:
                thumbnails.keep(key, made)
        content, media_type = made
        return Response(content, headers=headers, media_type=media_type)

    @routes.post(
        "/upload/image", openapi_extra=described(), responses=STORED | refusals(409, 415, 507)
    )
    async def upload_image(request: Request) -> Response:
        async with request.form(max_files=PARTS, max_fields=PARTS) as form:
            upload = Upload.of(form, limits)
            kind = await decoded(lambda: checked_format(upload.file, limits.upload_pixels))
            return await keep(upload, None, kind)

    @routes.post(
        "/upload/mask",
        openapi_extra=described("original_ref"),
        responses=STORED | refusals(404, 409, 415, 507),
    )
    async def upload_mask(request: Request) -> Response:
        async with request.form(max_files=PARTS, max_fields=PARTS) as form:
            upload = Upload.of(form, limits)
            wanted = upload.original
            if wanted is None:
                raise Refusal(
                    400, "the multipart field 'original_ref' names no picture for the mask"
                )
            original, _ = await asyncio.to_thread(
                find_user_file, state.folders, wanted.filename, wanted.subfolder, wanted.type
            )
            masked = await decoded(
                lambda: with_alpha_of(upload.file, original, limits.upload_pixels)
            )
            return await keep(upload, io.BytesIO(masked), "PNG")

    @routes.get(
        "/view_metadata/{folder}",
        responses=answers("the metadata of the model's file") | refusals(404),
    )
    async def view_metadata(folder: str, filename: Name) -> Response:
        return json_answer(await asyncio.to_thread(_notes, state.folders, folder, filename))

    return routes


def _preview(wanted: str) -> Preview | None:
    """Parses a preview format. Unsupported formats count as webp, as ComfyUI's clients expect."""
    match = PREVIEW.fullmatch(wanted)
    if match is None:
        raise Refusal(400, "preview is invalid: expected a format and a quality, as in webp;90")
    if not wanted:
        return None
    quality = int(match[2]) if match[2] else PREVIEW_QUALITY
    return ("jpeg" if match[1] == "jpeg" else "webp"), min(100, max(1, quality))


def _notes(folders: Folders, kind: str, name: str) -> dict[str, Any]:
    if not is_weights(name):
        raise Refusal(404, "only safetensors files have notes")
    try:
        path = folders.resolve(known_kind(folders, kind), name)
        with safe_open(path, framework="numpy") as file:
            notes = file.metadata()
    except InputError as error:
        raise Refusal(404, str(error)) from None
    except (SafetensorError, OSError):
        raise Refusal(404, "the file is not a readable safetensors file") from None
    if not notes:
        raise Refusal(404, "the file has no notes")
    return dict(notes)
