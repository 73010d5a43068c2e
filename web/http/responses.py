"""Builds responses: errors in ComfyUI's formats, texts without paths of this machine, and JSON that
every parser accepts, whole or in pages.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from katz_graph.core.errors import KatzError
from katz_graph.core.events import Warned
from katz_graph.files.folders import Folders
from katz_graph.web.events import Ended, JobError, JobEvent
from katz_graph.web.options import ServeOptions

# two parts or more: `/prompt` is a route
ABSOLUTE_PATH = re.compile(r"(?<![\w.:/-])(?:/[^\s/'\"`:,;()\[\]<>]+){2,}/?")
PROMPT_ROUTE = re.compile(r"(/api)?/prompt")
PAGE = 16  # jobs that are read and serialized together
Item = TypeVar("Item")


class Refusal(KatzError):
    """Refuses a request. `kind` is ComfyUI's error type; `retry_after` is in seconds."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request",
        details: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.details = details
        self.retry_after = retry_after


def json_answer(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Returns plain data as JSON; NaN and infinities become null."""
    return Response(json_text(content).encode(), status, dict(headers or {}), "application/json")


def refuse(
    request: Request,
    status: int,
    message: str,
    kind: str = "invalid_request",
    details: str = "",
    retry_after: float | None = None,
) -> Response:
    """Returns an error in the format of the route: an object for `/prompt`, a line elsewhere."""
    headers = {} if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
    if request.method == "POST" and PROMPT_ROUTE.fullmatch(request.url.path):
        error = {"type": kind, "message": message, "details": details, "extra_info": {}}
        return json_answer({"error": error, "node_errors": {}}, status, headers)
    return json_answer({"error": f"{message}: {details}" if details else message}, status, headers)


@dataclass(frozen=True, slots=True)
class PathRedactor:
    """Removes this machine's folders from texts that clients read."""

    prefixes: tuple[tuple[str, str], ...]  # absolute path, replacement; longest first

    @classmethod
    def of(cls, options: ServeOptions, folders: Folders) -> PathRedactor:
        extra = (
            path
            for paths in (*folders.extra.before.values(), *folders.extra.after.values())
            for path in paths
        )
        named = [
            *folders.models,
            folders.input,
            folders.output,
            options.data,
            *options.packs,
            *options.extra_model_paths,
            *extra,
        ]
        spelled = {str(spelling): path.name for path in named for spelling in _spellings(path)}
        return cls(tuple(sorted(spelled.items(), key=lambda item: -len(item[0]))))

    def text(self, text: str) -> str:
        """Replaces the operator's folders by their last name, and other absolute paths by their
        last part.
        """
        if "/" not in text and os.sep not in text:
            return text
        for prefix, name in self.prefixes:
            text = text.replace(prefix, name)
        return ABSOLUTE_PATH.sub(lambda match: match[0].rstrip("/").rpartition("/")[2], text)

    def data(self, data: Any) -> Any:
        """Redacts all texts in plain data except keys."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {key: self.data(value) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.data(value) for value in data]
        return data

    def event(self, reported: JobEvent) -> JobEvent:
        """Redacts the user-facing messages in an event."""
        match reported.event:
            case Warned(message=message):
                return replace(reported, event=Warned(self.text(message)))
            case Ended(error=JobError(message=message) as error) as ended:
                return replace(
                    reported, event=replace(ended, error=replace(error, message=self.text(message)))
                )
        return reported


def _spellings(path: Path) -> Iterable[Path]:
    absolute = path.absolute()
    return (spelling for spelling in (absolute, absolute.resolve()) if len(spelling.parts) > 1)


def json_text(data: Any, **options: Any) -> str:
    """Serializes to compact JSON. Numbers that JSON lacks (such as NaN) become null, and lone
    surrogates become question marks. `options` are passed to `json.dumps`.
    """
    try:
        text = json.dumps(
            data, ensure_ascii=False, separators=(",", ":"), allow_nan=False, **options
        )
    except ValueError:
        text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), **options)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, (list, tuple)) else data


def streamed(pieces: AsyncIterable[bytes]) -> StreamingResponse:
    """Streams JSON while it is generated."""
    return StreamingResponse(pieces, media_type="application/json")


async def joined(
    pages: AsyncIterable[Sequence[Item]], write: Callable[[Item], str]
) -> AsyncIterator[bytes]:
    """Serializes the items with `write`, separated by commas."""
    comma = b""
    async for page in pages:
        if page:
            yield comma + await asyncio.to_thread(_written, page, write)
            comma = b","


def _written(page: Sequence[Item], write: Callable[[Item], str]) -> bytes:
    return ",".join(map(write, page)).encode()


async def paged(items: Sequence[Item]) -> AsyncIterator[Sequence[Item]]:
    """Splits a sequence in memory into pages."""
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]
