"""Serves users' files: inline only if their type cannot contain scripts, and with ETags."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import BinaryIO

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse
from starlette.types import Receive, Scope, Send

from katz_graph.files.picture_kinds import HEAD_BYTES, PICTURE_KINDS, media_type_of
from katz_graph.web.http.preconditions import is_known, tag_of
from katz_graph.web.http.responses import Refusal

SHOWN_AS = {
    **{ending: kind.media_type for kind in PICTURE_KINDS.values() for ending in kind.endings},
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".mov": "video/quicktime",
    ".mkv": "video/x-matroska",
    ".mp3": "audio/mpeg",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".m4a": "audio/mp4",
    ".txt": "text/plain",
    ".json": "application/json",
    ".css": "text/css",
}
"""Maps name endings to the types that a browser may show inline. All other files (SVG, HTML,
scripts) are downloads.
"""
DOWNLOAD = "application/octet-stream"
LIFELESS = (
    "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'; "
    "sandbox; frame-ancestors 'none'"
)
GUARDED = {"Content-Security-Policy": LIFELESS, "Cache-Control": "no-cache"}


async def stored_file(request: Request, path: Path) -> Response:
    """Returns a regular file or the requested range of it; 304 if the client has the file. Length,
    ETag and bytes belong to one version even if the file is replaced. Raises Refusal 404 if the
    file does not exist.
    """
    file, media_type = await asyncio.to_thread(_open, path)
    answer = OpenedFile(file, path.name, media_type)
    if not is_known(request, answer.headers["etag"]):
        return answer
    file.close()
    return NotModifiedResponse(answer.headers)


class OpenedFile(FileResponse):
    """Serves a file that is already open, even if its name now belongs to another file. Closes the
    file afterwards.
    """

    def __init__(self, file: BinaryIO, name: str, media_type: str | None) -> None:
        state = os.fstat(file.fileno())
        super().__init__(
            f"/dev/fd/{file.fileno()}",
            headers={**GUARDED, "ETag": tag_of(state)},
            media_type=media_type or DOWNLOAD,
            filename=name,
            stat_result=state,
            content_disposition_type="inline" if media_type else "attachment",
        )
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def _open(path: Path) -> tuple[BinaryIO, str | None]:
    """Opens a regular file. Also returns its media type, by its ending or else by its first bytes.
    Raises Refusal 404 if the file does not exist.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not block on a pipe
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        raise Refusal(404, "file not found") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refusal(404, "file not found")
    file = os.fdopen(descriptor, "rb")
    if path.suffix:
        return file, SHOWN_AS.get(path.suffix.lower())
    media_type = media_type_of(file.read(HEAD_BYTES))
    file.seek(0)
    return file, media_type
