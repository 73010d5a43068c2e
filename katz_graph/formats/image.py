"""Reads the workflow embedded in a picture without decoding the picture.

PNG: text chunks (PNG specification, third edition, section 11.3.3). WebP: EXIF tags that begin with
`prompt:` and `workflow:`.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from katz_graph.core.errors import InputError
from katz_graph.formats.strict_json import TooLarge, parse_json
from katz_graph.formats.ui_document import is_ui
from katz_graph.formats.workflow import FORMAT, VERSION, is_native

LIMIT = 64 * 2**20  # bytes of JSON; 10,000 nodes take about 1 MB
PNG = b"\x89PNG\r\n\x1a\n"
TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")
CARRIERS = ("prompt", "workflow")  # keys of texts that contain a document
MAX_CHUNKS = 100_000  # per file; a picture of 64 MB in chunks of 8 KB has 8,192
LONGEST_KEY = 79  # bytes (PNG specification, third edition, section 11.3.3.2)
EXIF_TAGS = (0x010E, 0x010F, 0x0110)  # description, make and model, which save nodes write
EXIF_TYPES = (1, 2, 7)  # BYTE, ASCII and UNDEFINED, which may contain text
LABELLED = re.compile(r"\s*(prompt|workflow)\s*:\s*(?=\{)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Carried:
    """The workflow in a file, as parsed JSON of any format, and the editor's document if present.
    `in_picture`: the file is a picture.
    """

    document: Any
    editor: Mapping[str, Any] | None = None
    in_picture: bool = True


def workflow_from_picture(stream: BinaryIO, limit: int = LIMIT) -> Any:
    """Reads the document in a PNG or WebP. If the picture also contains an editor's document,
    returns Katz Graph's wrapper of the graph, with that document as `workflow`.

    InputError if the picture has no readable workflow; size errors as in `carried`.
    """
    found = carried(stream, limit)
    if found is None:
        raise InputError("is not a PNG or WebP picture")
    document, editor = found.document, found.editor
    if (
        editor is None
        or not isinstance(document, Mapping)
        or is_native(document)
        or is_ui(document)
    ):
        return document
    return {"format": FORMAT, "version": VERSION, "graph": document, "workflow": editor}


def carried(stream: BinaryIO, limit: int = LIMIT) -> Carried | None:
    """Reads the workflow embedded in a picture; None if the file is neither PNG nor WebP.
    InputError if the picture has no readable workflow. TooLarge for texts of more than `limit`
    decompressed bytes in total.

    Katz Graph's wrapper in `workflow`, which contains run options, takes precedence over the graph
    in `prompt`, and the graph over an editor's document.
    """
    head = stream.read(len(PNG) + 4)
    stream.seek(0)
    if head.startswith(PNG):
        kind, texts = "PNG", png_texts(stream, limit)
    elif is_webp(head):
        kind, texts = "WebP", webp_texts(stream, limit)
    else:
        return None
    prompt, workflow = texts.get("prompt"), texts.get("workflow")
    if not (prompt or workflow):
        raise InputError(
            f"is a {kind} without a workflow; only pictures saved with their metadata carry one"
        )
    around = _mapping(workflow or "")
    if around and around.get("format") == FORMAT:
        return Carried(around)
    try:
        document = parse_json(prompt or workflow or "")
    except InputError as error:
        raise inside(error) from None
    return Carried(document, around if prompt and around and is_ui(around) else None)


def inside(error: InputError) -> InputError:
    """Rewords an error for a workflow embedded in a picture."""
    return type(error)(
        "\n".join(f"the workflow inside the picture: {line}" for line in str(error).split("\n"))
    )


def png_texts(stream: BinaryIO, limit: int) -> dict[str, str]:
    """Reads the text chunks of a PNG with the keys in CARRIERS; skips other texts without
    decompressing them. TooLarge for more than `limit` bytes in total, InputError for a truncated or
    damaged file.
    """
    stream.read(len(PNG))
    texts: dict[str, str] = {}
    for _ in range(MAX_CHUNKS):
        header = stream.read(8)
        if len(header) < 8:
            if texts:
                return texts
            raise InputError("is a truncated PNG")
        size, kind = struct.unpack(">I4s", header)
        if kind == b"IEND":
            return texts
        if kind not in TEXT_CHUNKS:
            stream.seek(size + 4, 1)
            continue
        data = stream.read(min(size, LONGEST_KEY + 1))
        key = data.partition(b"\0")[0].decode("latin-1")
        if key not in CARRIERS or key in texts:
            stream.seek(size - len(data) + 4, 1)
            continue
        if size > limit + len(data):
            raise TooLarge(f"is a PNG with a text of {size:,} bytes; at most {limit:,} are read")
        data += stream.read(size - len(data))
        stream.seek(4, 1)
        if len(data) == size:
            text = _decoded(kind, data[len(key) + 1 :], limit)
            limit -= len(text)
            texts[key] = _text(text)
    raise TooLarge(f"is a PNG of more than {MAX_CHUNKS:,} chunks")


def is_webp(head: bytes) -> bool:
    return head[:4] == b"RIFF" and head[8:12] == b"WEBP"


def webp_texts(stream: BinaryIO, limit: int) -> dict[str, str]:
    """Reads the labelled texts in the EXIF data of a WebP, by label. TooLarge for more than `limit`
    bytes, InputError for damaged EXIF.
    """
    stream.read(12)
    for _ in range(MAX_CHUNKS):
        header = stream.read(8)
        if len(header) < 8:
            return {}
        kind, size = struct.unpack("<4sI", header)
        if kind != b"EXIF":
            stream.seek(size + size % 2, 1)
            continue
        if size > limit:
            raise TooLarge(f"is a WebP with EXIF of {size:,} bytes; at most {limit:,} are read")
        return _exif_texts(stream.read(size))
    raise TooLarge(f"is a WebP of more than {MAX_CHUNKS:,} chunks")


def _exif_texts(data: bytes) -> dict[str, str]:
    """Reads the labelled texts in the EXIF_TAGS of the first directory (Exif 2.32, section 4.6).

    Replaces Pillow's reader, which copies the value of every entry. Small entries that share one
    large value would take thousands of times the file's size in memory. The first entry of each tag
    is used.
    """
    data = data.removeprefix(b"Exif\0\0")
    texts: dict[str, str] = {}
    unread = set(EXIF_TAGS)
    try:
        order = {b"II*\0": "<", b"MM\0*": ">"}[data[:4]]
        (start,) = struct.unpack_from(f"{order}I", data, 4)
        (entries,) = struct.unpack_from(f"{order}H", data, start)
        for at in range(start + 2, start + 2 + 12 * entries, 12):
            tag, kind, size, place = struct.unpack_from(f"{order}HHII", data, at)
            if tag not in unread or kind not in EXIF_TYPES:
                continue
            unread.remove(tag)
            place = at + 8 if size <= 4 else place
            if place + size > len(data):
                raise ValueError
            text = _text(data[place : place + size])
            if label := LABELLED.match(text):
                texts.setdefault(label[1].lower(), text[label.end() :].rstrip("\0"))
    except (KeyError, ValueError, struct.error):
        raise InputError("is a WebP with damaged EXIF") from None
    return texts


def _decoded(kind: bytes, rest: bytes, limit: int) -> bytes:
    """Returns the bytes of a chunk's text; `rest` is the data after its key."""
    if kind == b"zTXt":
        return _inflated(rest[1:], limit)
    if kind == b"iTXt":
        compressed, rest = rest[:1] == b"\1", rest[2:]
        _, _, rest = rest.partition(b"\0")  # language
        _, _, rest = rest.partition(b"\0")  # translated keyword
        if compressed:
            return _inflated(rest, limit)
    if len(rest) > limit:
        raise TooLarge(f"is a PNG with texts of more than {limit:,} bytes")
    return rest


def _text(data: bytes) -> str:
    """Decodes UTF-8, otherwise Latin-1. The specification requires Latin-1, but many programs write
    UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _inflated(data: bytes, limit: int) -> bytes:
    """Decompresses at most one byte more than the limit. TooLarge if the text exceeds it."""
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(data, limit + 1)
    except zlib.error:
        raise InputError("is a PNG with a damaged compressed text") from None
    if len(text) > limit:
        raise TooLarge(f"is a PNG with a compressed text of more than {limit:,} bytes")
    return text


def _mapping(text: str) -> Mapping[str, Any] | None:
    try:
        document = parse_json(text)
    except TooLarge:
        raise
    except InputError:
        return None
    return document if isinstance(document, Mapping) else None
