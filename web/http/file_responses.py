"""Answers with users' files: browsers show them only where nothing in them could run, and ask again
only when they changed.
"""

from __future__ import annotations

import os
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse

SHOWN_AS = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".avif": "image/avif",
    ".bmp": "image/bmp",
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
"""What a browser may show by itself, by the name's ending. All else (SVG, HTML, scripts) is handed
over as a file to keep.
"""
DOWNLOAD = "application/octet-stream"
LIFELESS = (
    "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'; "
    "sandbox; frame-ancestors 'none'"
)
GUARDED = {"Content-Security-Policy": LIFELESS, "Cache-Control": "no-cache"}


def stored_file(request: Request, path: Path, state: os.stat_result) -> Response:
    """Answers with an ordinary file, or the range asked for; 304 when the client has it."""
    media_type = SHOWN_AS.get(path.suffix.lower())
    answer = FileResponse(
        path,
        headers=GUARDED,
        media_type=media_type or DOWNLOAD,
        filename=path.name,
        stat_result=state,
        content_disposition_type="inline" if media_type else "attachment",
    )
    return (
        NotModifiedResponse(answer.headers) if is_known(request, answer.headers["etag"]) else answer
    )


def is_known(request: Request, tag: str) -> bool:
    """Checks whether the client has the answer with this ETag already."""
    known = [
        given.strip().removeprefix("W/")
        for header in request.headers.getlist("if-none-match")
        for given in header.split(",")
    ]
    return tag in known or known == ["*"]
