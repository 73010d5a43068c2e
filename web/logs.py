"""Formats the server's log as readable lines or as one JSON object a line.

The server itself logs no prompts. Pack output and tracebacks of unexpected errors are logged and
may contain client data. Both formats escape control characters.
"""

from __future__ import annotations

import json
import logging
import time
from contextvars import ContextVar

from katz_graph.core.messages import one_line

REQUEST: ContextVar[str] = ContextVar("request")
"""The id of the current request."""


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, the request's id if
    set, and the entries of the record's extra `fields`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request = REQUEST.get(None)
        if request is not None:
            line["request"] = request
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line)  # ASCII only


class Lines(logging.Formatter):
    """Formats a record as `12:03:44 warning: message [request]`."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        request = REQUEST.get(None)
        tail = f" [{request}]" if request is not None else ""
        first = (
            f"{time.strftime('%H:%M:%S', time.localtime(record.created))} "
            f"{level}{one_line(record.getMessage())}{tail}"
        )
        trace = self.formatException(record.exc_info).split("\n") if record.exc_info else []
        return "\n".join([first, *map(one_line, trace)])


def set_up(as_json: bool) -> None:
    """Configures logging to standard error. Libraries log only warnings and errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("katz").setLevel(logging.INFO)
