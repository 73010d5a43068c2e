"""Reads workflow files of every format, which it detects by content. A file that cannot be read is
reported as an InputError with its name.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

from katz_graph.core.errors import InputError
from katz_graph.core.messages import one_line, suggest
from katz_graph.formats.api import from_api
from katz_graph.formats.image import LIMIT, PNG, Carried, carried, inside, is_webp
from katz_graph.formats.signature import Signature, Signatures, signatures
from katz_graph.formats.strict_json import TooLarge, parse_json
from katz_graph.formats.ui_document import is_ui
from katz_graph.formats.ui_to_prompt import Sending, prompt_from_ui, sending_now
from katz_graph.formats.workflow import Workflow, from_native, is_native
from katz_graph.node.types import NodeType

SHIPPED = Path(str(files("katz_graph.workflows")))
HEAD = 4096  # bytes for detecting the format
FOREIGN = {
    b"\xff\xd8\xff": "a JPEG picture, which carries no workflow",
    b"GIF8": "a GIF picture, which carries no workflow",
    b"PK\x03\x04": "a ZIP archive, not a workflow",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}


def read_workflow(
    path: str | Path,
    types: Mapping[str, NodeType] | None = None,
    foreign: Mapping[str, Signature] | None = None,
    verbatim: bool = False,
) -> Workflow:
    """Reads a workflow file: API format, UI format, Katz Graph's wrapper, or a PNG or WebP with an
    embedded workflow. If no such file exists, `NAME`, `NAME.json` and `workflows/NAME.json` refer
    to the shipped workflow of this name.

    Widget names in UI files come from `foreign`, a server's description, then from `types`. With
    `verbatim`, texts stay as typed; otherwise they are converted as if sent now. InputError with
    one line per problem.
    """
    try:
        with _opened(_found(Path(path))) as stream:
            workflow = _workflow(
                read_document(stream),
                signatures(types or {}, foreign),
                None if verbatim else sending_now(),
            )
    except InputError as error:
        raise _named(str(path), error) from None
    except OSError as error:
        raise InputError(f"{one_line(str(path))}: {error.strerror or error}") from None
    return replace(workflow, source=str(path))


def parse_workflow(
    document: Any,
    types: Mapping[str, NodeType] | None = None,
    foreign: Mapping[str, Signature] | None = None,
    sending: Sending | None = None,
) -> Workflow:
    """Reads a workflow from parsed JSON of any format; `types` and `foreign` as in `read_workflow`.
    A UI document is converted as if it were sent now, unless `sending` is given.
    """
    return _parse(document, signatures(types or {}, foreign), sending or sending_now())


def _parse(document: Any, known: Signatures, sending: Sending | None) -> Workflow:
    if isinstance(document, Mapping) and is_native(document):
        return from_native(document)
    if isinstance(document, Mapping) and is_ui(document):
        return prompt_from_ui(document, known, sending)
    return Workflow(from_api(document), is_prompt=True)


def _found(file: Path) -> Path:
    """Returns the file, or the shipped workflow with its name if the file does not exist."""
    with suppress(OSError, ValueError):
        shipped = SHIPPED / f"{file.stem}.json"
        named = file.suffix in ("", ".json") and _may_be_shipped(file)
        if named and not file.exists() and shipped.is_file():
            return shipped
    return file


def _may_be_shipped(file: Path) -> bool:
    return str(file.parent) in (".", SHIPPED.name)


def _opened(file: Path) -> BinaryIO:
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        folder = file.parent
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        if _may_be_shipped(file):
            names += [f"{entry.stem}{file.suffix}" for entry in SHIPPED.glob("*.json")]
        raise InputError(f"no such file{suggest(file.name, names)}") from None
    except ValueError:
        raise InputError("no such file; the name contains a zero byte") from None
    if stat.S_ISDIR(mode):
        raise InputError("is a folder, expected a workflow file")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise InputError("is a device or socket, expected a workflow file")
    return file.open("rb")


def read_document(stream: BinaryIO, limit: int = LIMIT) -> Carried:
    """Reads the document of a workflow file, as parsed JSON. InputError for a file without a
    workflow. TooLarge for more than `limit` bytes of JSON, after decompression.
    """
    head = stream.read(HEAD)
    if not head:
        raise InputError("is empty")
    if head.startswith(PNG) or is_webp(head):
        if not stream.seekable():
            raise InputError("is a picture in a pipe; give the file itself")
        stream.seek(0)
        found = carried(stream, limit)
        assert found is not None
        return found
    for magic, meaning in FOREIGN.items():
        if head.startswith(magic):
            raise InputError(f"is {meaning}")
    if b"\0" in head:
        raise InputError(
            "is a binary file, expected a workflow: JSON text, or a PNG or WebP that carries one"
        )
    data = head + stream.read(max(0, limit + 1 - len(head)))
    if len(data) > limit:
        raise TooLarge(f"is larger than {limit / 2**20:,.4g} MB, the limit for workflows")
    return Carried(parse_json(_utf8(data)), in_picture=False)


def _utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"is not UTF-8 text (line {line}, byte {error.start:,}); save it as UTF-8"
        ) from None


def _workflow(found: Carried, known: Signatures, sending: Sending | None) -> Workflow:
    try:
        workflow = _parse(found.document, known, sending)
    except InputError as error:
        raise inside(error) if found.in_picture else error from None
    if found.in_picture:  # the graph in a picture may lack defaults
        workflow = replace(workflow, is_prompt=False)
    return workflow if found.editor is None else _with_surroundings(workflow, found.editor, known)


def _with_surroundings(
    workflow: Workflow, editor: Mapping[str, Any], known: Signatures
) -> Workflow:
    """Adds the layout and run options of the editor's document to the executed graph."""
    try:
        from_editor = prompt_from_ui(editor, known)
        return replace(
            workflow, layout=from_editor.layout, run=from_editor.run, extra=from_editor.extra
        )
    except InputError as error:
        return replace(
            workflow,
            notes=(
                *workflow.notes,
                f"the layout of the graph was left out: {str(error).splitlines()[0]}",
            ),
        )


def _named(path: str, error: InputError) -> InputError:
    return InputError("\n".join(f"{one_line(path)}: {line}" for line in str(error).split("\n")))
