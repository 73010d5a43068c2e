"""The server logs as JSON and as text."""

from __future__ import annotations

import json
import logging
import re
import sys

from katz_graph.web.logs import REQUEST, JsonLines, Lines


def record(message: str, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("katz.web", level, __file__, 1, message, (), None)
    made.__dict__.update(more)
    return made


def test_json_lines_are_one_object_each_with_the_request() -> None:
    token = REQUEST.set("r-1")
    try:
        line = JsonLines().format(
            record('two\nlines "quoted"', logging.WARNING, created=1_700_000_000.25, msecs=250.0)
        )
    finally:
        REQUEST.reset(token)
    assert "\n" not in line
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "warning",
        "logger": "katz.web",
        "message": 'two\nlines "quoted"',
        "request": "r-1",
    }
    assert "request" not in json.loads(JsonLines().format(record("outside of a request")))


def test_errors_bring_their_trace_into_the_log() -> None:
    try:
        raise RuntimeError("deep inside")
    except RuntimeError:
        failed = record("broken", logging.ERROR, exc_info=sys.exc_info())
    assert "deep inside" in json.loads(JsonLines().format(failed))["trace"]
    first, *rest = Lines().format(failed).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d error: broken", first)
    assert rest[-1] == "RuntimeError: deep inside"


def test_prints_of_packs_cannot_control_the_terminal() -> None:
    try:
        raise RuntimeError("deep\x1b]0;inside\r\x9b2J")
    except RuntimeError:
        failed = record("50%\r100%\x1b[2J\x9b2J\nforged", logging.ERROR, exc_info=sys.exc_info())
    for formatter in (Lines(), JsonLines()):
        text = formatter.format(failed)
        assert not set(text.replace("\n", "")) & {"\x1b", "\r", "\x9b"}
    assert Lines().format(failed).splitlines()[0].endswith(r"50% 100%\x1b[2J\x9b2J forged")
