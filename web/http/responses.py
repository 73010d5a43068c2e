"""Makes refusals in ComfyUI's shapes, and texts without paths of this machine."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from katz_graph.errors import KatzError
from katz_graph.events import Warned
from katz_graph.files.folders import Folders
from katz_graph.web.events import Ended, JobError, JobEvent
from katz_graph.web.http.json import json_text
from katz_graph.web.options import ServeOptions

ABSOLUTE_PATH = re.compile(r"(?<![\w.:/-])(?:/[^\s/'\"`:,;()\[\]<>]+){2,}/?")  # of two parts or more: `/prompt` is a route
PROMPT_ROUTE = re.compile(r"(/api)?/prompt")


class Refusal(KatzError):
    """Refuses a request. `kind` is ComfyUI's error type; `retry_after` is in seconds."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request", details: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.details = details
        self.retry_after = retry_after


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answers with JSON of plain data, whatever its numbers."""
    return Response(json_text(content).encode(), status, dict(headers or {}), "application/json")


def refuse(
    request: Request, status: int, message: str, kind: str = "invalid_request", details: str = "", retry_after: float | None = None
) -> Response:
    """Refuses as clients of this route expect it: an object for `/prompt`, a line elsewhere."""
    headers = {} if retry_after is None else {"Retry-After": str(max(1, math.ceil(retry_after)))}
    if request.method == "POST" and PROMPT_ROUTE.fullmatch(request.url.path):
        error = {"type": kind, "message": message, "details": details, "extra_info": {}}
        return json_answer({"error": error, "node_errors": {}}, status, headers)
    return json_answer({"error": f"{message}: {details}" if details else message}, status, headers)


@dataclass(frozen=True, slots=True)
class PathRedactor:
    """Takes this machine's folders out of texts that clients read."""

    prefixes: tuple[tuple[str, str], ...]  # absolute path, what stands for it; longest first

    @classmethod
    def of(cls, options: ServeOptions, folders: Folders) -> PathRedactor:
        extra = (path for paths in (*folders.extra.before.values(), *folders.extra.after.values()) for path in paths)
        named = [*folders.models, folders.input, folders.output, options.data, *options.packs, *options.extra_model_paths, *extra]
        spelled = {str(spelling): path.name for path in named for spelling in _spellings(path)}
        return cls(tuple(sorted(spelled.items(), key=lambda item: -len(item[0]))))

    def text(self, text: str) -> str:
        """Replaces folders that the operator named by their last name; keeps only the last part of
        other absolute paths.
        """
        if "/" not in text and os.sep not in text:
            return text
        for prefix, name in self.prefixes:
            text = text.replace(prefix, name)
        return ABSOLUTE_PATH.sub(lambda match: match[0].rstrip("/").rpartition("/")[2], text)

    def data(self, data: Any) -> Any:
        """Redacts every text in plain data, but for keys."""
        if isinstance(data, str):
            return self.text(data)
        if isinstance(data, Mapping):
            return {key: self.data(value) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [self.data(value) for value in data]
        return data

    def event(self, told: JobEvent) -> JobEvent:
        """Redacts the messages for people in an event."""
        match told.event:
            case Warned(message=message):
                return replace(told, event=Warned(self.text(message)))
            case Ended(error=JobError(message=message) as error) as ended:
                return replace(told, event=replace(ended, error=replace(error, message=self.text(message))))
        return told


def _spellings(path: Path) -> Iterable[Path]:
    absolute = path.absolute()
    return (spelling for spelling in (absolute, absolute.resolve()) if len(spelling.parts) > 1)
