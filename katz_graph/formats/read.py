"""Workflow files of every kind, told apart by content. What cannot be read is one InputError line with the file's name."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from katz_graph.errors import InputError
from katz_graph.formats.api import from_api
from katz_graph.formats.image import SIGNATURE, png_texts
from katz_graph.formats.native import FORMAT, from_native, is_native
from katz_graph.formats.strict_json import parse_json
from katz_graph.formats.workflow import Workflow
from katz_graph.wording import one_line, suggest

LIMIT = 64 * 2**20  # bytes of JSON; 10,000 nodes take about 1 MB
HEAD = 4096  # bytes that tell what a file is
FOREIGN = {
    b"\xff\xd8\xff": "a JPEG picture, which carries no workflow",
    b"GIF8": "a GIF picture, which carries no workflow",
    b"RIFF": "a WebP picture, which is not read yet; use its PNG or the workflow's JSON",
    b"PK\x03\x04": "a ZIP archive, not a workflow",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}


def read_workflow(path: str | Path) -> Workflow:
    """The workflow in a file: API format, Katz Graph's wrapper, or a PNG that carries one. InputError with one line a problem."""
    file = Path(path)
    try:
        with _opened(file) as stream:
            workflow = _read(stream)
    except InputError as error:
        raise _named(str(path), error) from None
    except OSError as error:
        raise InputError(f"{one_line(str(path))}: {error.strerror or error}") from None
    return replace(workflow, source=str(path))


def parse_workflow(document: Any) -> Workflow:
    """The workflow in parsed JSON, of whatever format."""
    if not isinstance(document, Mapping):
        return Workflow(from_api(document))
    return next(read for recognises, read in FORMATS if recognises(document))(document)


def _is_ui(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("nodes"), list) and "links" in document


def _from_ui(document: Mapping[str, Any]) -> Workflow:
    raise InputError("is a UI workflow (what the editor saves), which is not read yet; export it in API format (Workflow > Export (API))")


FORMATS: tuple[tuple[Callable[[Mapping[str, Any]], bool], Callable[[Mapping[str, Any]], Workflow]], ...] = (
    (is_native, from_native),
    (_is_ui, _from_ui),
    (lambda document: True, lambda document: Workflow(from_api(document))),
)


def _opened(file: Path) -> BinaryIO:
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        folder = file.parent
        beside = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        raise InputError(f"no such file{suggest(file.name, beside)}") from None
    except ValueError:
        raise InputError("no such file; the name holds a zero byte") from None
    if stat.S_ISDIR(mode):
        raise InputError("is a folder, expected a workflow file")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InputError("is a device or socket, expected a workflow file")
    return file.open("rb")


def _read(stream: BinaryIO) -> Workflow:
    head = stream.read(HEAD)
    if not head:
        raise InputError("is empty")
    if head.startswith(SIGNATURE):
        if not stream.seekable():
            raise InputError("is a PNG in a pipe; give the file itself")
        stream.seek(len(SIGNATURE))
        return _from_texts(png_texts(stream, LIMIT))
    for magic, meaning in FOREIGN.items():
        if head.startswith(magic):
            raise InputError(f"is {meaning}")
    if b"\0" in head:
        raise InputError("is a binary file, expected a workflow: JSON text, or a PNG that carries one")
    data = head + stream.read(LIMIT + 1 - len(head))
    if len(data) > LIMIT:
        raise InputError(f"is larger than {LIMIT // 2**20} MB; no workflow is")
    return parse_workflow(parse_json(_utf8(data)))


def _utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"is not UTF-8 text (line {line}, byte {error.start:,}); save it as UTF-8") from None


def _from_texts(texts: Mapping[str, str]) -> Workflow:
    """Katz Graph's wrapper in `workflow`, which knows the run options, goes before the plain graph in `prompt`."""
    chosen = texts.get("prompt") or texts.get("workflow")
    if not chosen:
        raise InputError("is a PNG without a workflow; only pictures saved with their metadata carry one")
    try:
        wrapper = _wrapper(texts.get("workflow", ""))
        return from_native(wrapper) if wrapper else parse_workflow(parse_json(chosen))
    except InputError as error:
        raise InputError("\n".join(f"the workflow inside the PNG {line}" for line in str(error).split("\n"))) from None


def _wrapper(text: str) -> Mapping[str, Any] | None:
    try:
        document = parse_json(text)
    except InputError:
        return None
    return document if isinstance(document, Mapping) and document.get("format") == FORMAT else None


def _named(path: str, error: InputError) -> InputError:
    return InputError("\n".join(f"{one_line(path)}: {line}" for line in str(error).split("\n")))
