"""Reads the workflow inside a picture without decoding it.

PNG: text chunks (PNG specification, third edition, section 11.3.3). WebP: EXIF tags that begin with
`prompt:` and `workflow:`.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from katz_graph.errors import InputError
from katz_graph.formats.strict_json import parse_json
from katz_graph.formats.ui_document import is_ui
from katz_graph.formats.workflow import FORMAT, VERSION, is_native

LIMIT = 64 * 2**20  # bytes of JSON; 10,000 nodes take about 1 MB
PNG = b"\x89PNG\r\n\x1a\n"
TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")
EXIF_TAGS = (0x010E, 0x010F, 0x0110)  # description, make and model: where save nodes write
BROKEN_OFF = ".*(larger than file|corrupt|truncated)"  # what Pillow warns of and then leaves out
LABELLED = re.compile(r"\s*(prompt|workflow)\s*:\s*(?=\{)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Carried:
    """Holds the workflow of a file, as parsed JSON of whatever format, and the editor's document
    where one stands beside it. `in_picture`: a picture carried it.
    """

    document: Any
    editor: Mapping[str, Any] | None = None
    in_picture: bool = True


def workflow_from_picture(data: bytes) -> Any:
    """Reads the document in a PNG or WebP. A graph with an editor's document beside it becomes Katz
    Graph's wrapper, with that one as its `workflow`.

    InputError when there is none, or it cannot be read.
    """
    found = carried(io.BytesIO(data))
    if found is None:
        raise InputError("is no PNG or WebP picture")
    document, editor = found.document, found.editor
    if (
        editor is None
        or not isinstance(document, Mapping)
        or is_native(document)
        or is_ui(document)
    ):
        return document
    return {"format": FORMAT, "version": VERSION, "graph": document, "workflow": editor}


def carried(stream: BinaryIO) -> Carried | None:
    """Reads the workflow that a picture carries; None when the file is neither PNG nor WebP.
    InputError when it carries nothing that can be read.

    Katz Graph's wrapper in `workflow`, which knows the run options, goes before the graph in
    `prompt`, and that before an editor's.
    """
    head = stream.read(len(PNG) + 4)
    stream.seek(0)
    if head.startswith(PNG):
        kind, texts = "PNG", png_texts(stream, LIMIT)
    elif is_webp(head):
        kind, texts = "WebP", webp_texts(stream, LIMIT)
    else:
        return None
    prompt, beside = texts.get("prompt"), texts.get("workflow")
    if not (prompt or beside):
        raise InputError(
            f"is a {kind} without a workflow; only pictures saved with their metadata carry one"
        )
    around = _mapping(beside or "")
    if around and around.get("format") == FORMAT:
        return Carried(around)
    try:
        document = parse_json(prompt or beside or "")
    except InputError as error:
        raise inside(error) from None
    return Carried(document, around if prompt and around and is_ui(around) else None)


def inside(error: InputError) -> InputError:
    """Rewords an error for a workflow that a picture carries."""
    return InputError(
        "\n".join(f"the workflow inside the picture: {line}" for line in str(error).split("\n"))
    )


def png_texts(stream: BinaryIO, limit: int) -> dict[str, str]:
    """Reads the text chunks of a PNG by key. InputError for more than `limit` bytes in all, or a
    broken file.
    """
    stream.read(len(PNG))
    texts: dict[str, str] = {}
    while True:
        header = stream.read(8)
        if len(header) < 8:
            if texts:
                return texts
            raise InputError("is a PNG that breaks off")
        size, kind = struct.unpack(">I4s", header)
        if kind == b"IEND":
            return texts
        if kind not in TEXT_CHUNKS:
            stream.seek(size + 4, 1)
            continue
        if size > limit:
            raise InputError(f"is a PNG with a text of {size:,} bytes; at most {limit:,} are read")
        data = stream.read(size)
        stream.seek(4, 1)
        if len(data) == size:
            key, text = _decoded(kind, data, limit)
            limit -= len(text)
            texts.setdefault(key, text)


def is_webp(head: bytes) -> bool:
    return head[:4] == b"RIFF" and head[8:12] == b"WEBP"


def webp_texts(stream: BinaryIO, limit: int) -> dict[str, str]:
    """Reads the labelled texts in the EXIF of a WebP by label. InputError for more than `limit`
    bytes, or broken EXIF.
    """
    stream.read(12)
    while len(header := stream.read(8)) == 8:
        kind, size = struct.unpack("<4sI", header)
        if kind != b"EXIF":
            stream.seek(size + size % 2, 1)
            continue
        if size > limit:
            raise InputError(f"is a WebP with EXIF of {size:,} bytes; at most {limit:,} are read")
        return _exif_texts(stream.read(size))
    return {}


def _exif_texts(data: bytes) -> dict[str, str]:
    from PIL import Image

    exif = Image.Exif()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", BROKEN_OFF)
            exif.load(data)
            values = [exif.get(tag) for tag in EXIF_TAGS]
    except Exception:  # Pillow's reader fails in many ways on damaged data
        raise InputError("is a WebP with damaged EXIF") from None
    texts: dict[str, str] = {}
    for value in values:
        text = _text(value) if isinstance(value, bytes) else value if isinstance(value, str) else ""
        if label := LABELLED.match(text):
            texts.setdefault(label[1].lower(), text[label.end() :].rstrip("\0"))
    return texts


def _decoded(kind: bytes, data: bytes, limit: int) -> tuple[str, str]:
    key, _, rest = data.partition(b"\0")
    name = key.decode("latin-1")
    if kind == b"tEXt":
        return name, _text(rest)
    if kind == b"zTXt":
        return name, _text(_inflated(rest[1:], limit))
    compressed, rest = rest[:1] == b"\1", rest[2:]
    _, _, rest = rest.partition(b"\0")  # language
    _, _, rest = rest.partition(b"\0")  # translated keyword
    return name, _text(_inflated(rest, limit) if compressed else rest)


def _text(data: bytes) -> str:
    """Decodes UTF-8, else Latin-1. The specification has Latin-1; many writers put UTF-8 there."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _inflated(data: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data, limit)
    except zlib.error:
        raise InputError("is a PNG with a damaged compressed text") from None
    if inflater.unconsumed_tail:
        raise InputError(f"is a PNG with a compressed text of more than {limit:,} bytes")
    return text


def _mapping(text: str) -> Mapping[str, Any] | None:
    try:
        document = parse_json(text)
    except InputError:
        return None
    return document if isinstance(document, Mapping) else None
