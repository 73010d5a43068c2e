"""Reads small tensors from a safetensors file: one number, or bytes. Never imports torch."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from katz_graph.errors import InputError
from katz_graph.models.loading.identity import LENGTH_BYTES, read_header
from katz_graph.recipe import FileIdentity

FORMATS = {"F64": "<d", "F32": "<f", "F16": "<e", "BF16": "<f", "I64": "<q", "I32": "<i"}
LEADING = {"BF16": b"\0\0"}  # the lower half of a float32


def read_number(file: FileIdentity, name: str) -> float:
    """Returns the value of a tensor that is there. InputError unless it is one number in a format
    that is read.
    """
    entry, content = _read(file, name)
    shape, kind = entry["shape"], entry["dtype"]
    if math.prod(shape) != 1 or kind not in FORMATS:
        raise InputError(f"{file.path}: {name} is {kind} {shape}, expected one number")
    value: float = struct.unpack(FORMATS[kind], LEADING.get(kind, b"") + content)[0]
    return value


def read_bytes(file: FileIdentity, name: str) -> bytes:
    """Returns the content of a tensor that is there. InputError unless it is bytes."""
    entry, content = _read(file, name)
    if entry["dtype"] != "U8":
        raise InputError(f"{file.path}: {name} is {entry['dtype']}, expected bytes (U8)")
    return content


def _read(file: FileIdentity, name: str) -> tuple[dict[str, Any], bytes]:
    """Returns a tensor's entry in the header, and its content."""
    path = Path(file.path)
    header, entries = read_header(path)
    begin, end = entries[name]["data_offsets"]
    with path.open("rb") as content:
        content.seek(LENGTH_BYTES + len(header) + begin)
        return entries[name], content.read(end - begin)
