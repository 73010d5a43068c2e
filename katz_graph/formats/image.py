"""The workflow inside a PNG: its text chunks, read without decoding the picture (PNG specification, third edition, section 11.3.3)."""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO

from katz_graph.errors import InputError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")


def png_texts(stream: BinaryIO, limit: int) -> dict[str, str]:
    """The text chunks of a PNG by key; the stream stands behind the signature. InputError for more than `limit` bytes, or a broken file."""
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
            texts.setdefault(key, text)


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
    """Latin-1 by the specification; many writers put UTF-8 there."""
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
