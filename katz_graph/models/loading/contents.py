"""Reads the header of a safetensors file (tensor names, shapes and dtypes), and small tensors: a
scalar, or bytes. Never imports torch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import FileIdentity
from katz_graph.models.loading.configurations import Shapes
from katz_graph.models.loading.identity import LENGTH_BYTES, file_identity, read_header
from katz_graph.models.loading.quantised import is_scale_or_marker

FORMATS = {"F64": "<d", "F32": "<f", "F16": "<e", "BF16": "<f", "I64": "<q", "I32": "<i"}
LEADING = {"BF16": b"\0\0"}  # the lower half of a float32


@dataclass(frozen=True, slots=True)
class Contents:
    """Holds the header of a safetensors file, without the scales and markers of weights."""

    identity: FileIdentity
    shapes: Shapes
    types: Mapping[str, str]  # dtype by tensor
    metadata: Mapping[str, str]

    @property
    def path(self) -> str:
        return self.identity.path

    def under(self, prefix: str) -> Shapes:
        """Returns the tensors under a prefix, with the prefix removed."""
        return {
            name.removeprefix(prefix): shape
            for name, shape in self.shapes.items()
            if name.startswith(prefix)
        }


def contents(path: str | Path) -> Contents:
    """Reads a file's header. Raises InputError for a pickle, truncated file or other format."""
    return contents_of(file_identity(path))


@lru_cache(maxsize=64)
def contents_of(identity: FileIdentity) -> Contents:
    """Reads the header of a file by its identity."""
    _, entries = read_header(Path(identity.path))
    metadata = entries.pop("__metadata__", {})
    entries = {name: entry for name, entry in entries.items() if not is_scale_or_marker(name)}
    shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
    return Contents(
        identity, shapes, {name: entry["dtype"] for name, entry in entries.items()}, metadata
    )


def read_number(file: FileIdentity, name: str) -> float:
    """Returns the value of a scalar tensor in the file. Raises InputError for another shape or an
    unsupported dtype.
    """
    entry, content = _read(file, name)
    shape, kind = entry["shape"], entry["dtype"]
    if math.prod(shape) != 1 or kind not in FORMATS:
        raise InputError(f"{file.path}: {name} is {kind} {shape}, expected one number")
    value: float = struct.unpack(FORMATS[kind], LEADING.get(kind, b"") + content)[0]
    return value


def read_bytes(file: FileIdentity, name: str) -> bytes:
    """Returns a tensor's content. Raises InputError unless the dtype is bytes (U8)."""
    entry, content = _read(file, name)
    if entry["dtype"] != "U8":
        raise InputError(f"{file.path}: {name} is {entry['dtype']}, expected bytes (U8)")
    return content


def _read(file: FileIdentity, name: str) -> tuple[dict[str, Any], bytes]:
    """Returns a tensor's header entry and content."""
    path = Path(file.path)
    header, entries = read_header(path)
    begin, end = entries[name]["data_offsets"]
    with path.open("rb") as content:
        content.seek(LENGTH_BYTES + len(header) + begin)
        return entries[name], content.read(end - begin)
