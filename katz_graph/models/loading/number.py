"""Reads a tensor of one number from a safetensors file. Never imports torch."""

from __future__ import annotations

import math
import struct
from pathlib import Path

from katz_graph.errors import InputError
from katz_graph.models.loading.identity import LENGTH_BYTES, read_header
from katz_graph.recipe import FileIdentity

FORMATS = {"F64": "<d", "F32": "<f", "F16": "<e", "BF16": "<f", "I64": "<q", "I32": "<i"}
LEADING = {"BF16": b"\0\0"}  # the lower half of a float32


def read_number(file: FileIdentity, name: str) -> float:
    """Returns the value of a tensor that is there. InputError unless it is one number in a format
    that is read.
    """
    path = Path(file.path)
    header, entries = read_header(path)
    entry = entries[name]
    shape, kind = entry["shape"], entry["dtype"]
    if math.prod(shape) != 1 or kind not in FORMATS:
        raise InputError(f"{path}: {name} is {kind} {shape}, expected one number")
    begin, end = entry["data_offsets"]
    with path.open("rb") as content:
        content.seek(LENGTH_BYTES + len(header) + begin)
        value: float = struct.unpack(
            FORMATS[kind], LEADING.get(kind, b"") + content.read(end - begin)
        )[0]
    return value
