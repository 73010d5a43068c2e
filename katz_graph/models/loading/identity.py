"""Reads the headers of files, and identifies their versions.

Never reads weights. Never imports torch.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, FileIdentity, MergedComponent
from katz_graph.files.weights import USUAL_ENDING, is_pickle
from katz_graph.models.loading.quantised import (
    STORED_TYPES,
    WIDE_TYPES,
    Header,
    is_scale_or_marker,
    tensor_entries,
)

LONGEST_HEADER = 100_000_000  # bytes; the limit of the safetensors library
VALUE_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
    "F32": 32, "I32": 32, "U32": 32,
    "F16": 16, "BF16": 16, "I16": 16, "U16": 16,
    "I8": 8, "U8": 8, "BOOL": 8,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
PICKLE = "a pickle, which can run code when it is opened, is refused"
CHANGED = "changed since the workflow began to use it: run the workflow again"
FOREIGN = {
    b"version https://git-lfs": "a pointer of Git LFS, not the file itself: fetch it with git lfs "
    "pull, or download it",
    b"<": "a web page, not a model, perhaps a login page: download the model again",
    b"PK\x03\x04": f"{PICKLE}, even if renamed: use the .safetensors file of the same model",
    b"\x80\x02": f"{PICKLE}, even if renamed: use the .safetensors file of the same model",
    b"GGUF": "a GGUF file, which is not supported: use the .safetensors file of the same model",
}  # signatures of files that users mistake for models
LONGEST_SIGN = 64  # bytes
LENGTH_BYTES = 8  # of the header length
COMPONENTS_KNOWN = 256
FILES = 4096  # whose hashes are remembered
# A file that was written less long ago may be written again with the same times, because clocks of
# file systems tick.
SETTLED_NS = 2_000_000_000
PEFT_FILE, PEFT_CONFIGURATION = "adapter_model.safetensors", "adapter_config.json"
COMPANIONS = {PEFT_FILE: (PEFT_CONFIGURATION,)}
"""Maps lowercase names of weights files to the configuration files in the same folder. The identity
of a weights file lists these, so readers do not search for them.
"""


def check_unchanged(*files: FileIdentity) -> None:
    """Raises InputError if a file or companion has changed since it was identified."""
    for file in (one for named in files for one in (named, *named.companions)):
        try:
            now = Path(file.path).stat()
        except OSError as error:
            raise InputError(f"{file.path}: {error.strerror or error}") from None
        if (now.st_size, now.st_mtime_ns) != (file.size, file.modified_ns):
            raise InputError(f"{file.path}: {CHANGED}")


def count_values(
    component: Component,
    values: Callable[[str, Sequence[int]], int] = lambda _, shape: math.prod(shape),
) -> int:
    """Counts the values of a component's weights, from the headers of its files. `values`: counts
    those that are used of a tensor, from its name and shape.
    """
    return sum(values(name, entry["shape"]) for name, entry in _entries(component))


@lru_cache(maxsize=COMPONENTS_KNOWN)
def stored_share(component: Component, value_bytes: int) -> float:
    """Returns the share of a component's wide weights, of `value_bytes` for each value, that they
    take in memory, from the headers of its files.
    """
    if isinstance(component, MergedComponent):
        return 1.0
    held = values = 0
    for _, entry in _entries(component):
        count = math.prod(entry["shape"])
        rounds = component.rounding is not None and entry["dtype"] in WIDE_TYPES
        narrow = len(entry["shape"]) > 1 and (rounds or entry["dtype"] in STORED_TYPES)
        held += count if narrow else count * value_bytes
        values += count
    return held / (values * value_bytes) if values else 1.0


def _entries(component: Component) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the names and the header entries of a component's weights."""
    for file in component.weight_files:
        for name, entry in tensor_entries(read_header(Path(file.path))[1]):
            if name.startswith(component.prefix) and not is_scale_or_marker(name):
                yield name, entry


def resolve(path: str | Path) -> Path:
    """Returns the absolute path, and resolves symbolic links of the folder. A linked file keeps its
    name, because the hub's cache links to files named by hash.

    Raises InputError if the file does not exist or links form a circle.
    """
    path = Path(path).expanduser()
    try:
        real = path.resolve(strict=True)
        return real if real.is_dir() else path.parent.resolve() / path.name
    except FileNotFoundError:
        broken = "a link to a missing file" if os.path.lexists(path) else "no such file or folder"
        raise InputError(f"{path}: {broken}") from None
    # RuntimeError: links form a circle, in Python 3.11 and 3.12
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"{path}: cannot be opened: "
            f"{getattr(error, 'strerror', None) or 'its symbolic links go in a circle'}"
        ) from None


def configuration_identity(path: str | Path) -> FileIdentity:
    """Returns the identity of a small file, with a hash of its content."""
    path = resolve(path)
    status = path.stat()
    return FileIdentity(
        str(path), status.st_size, status.st_mtime_ns, _hash(path, status, _content_hash)
    )


def read_configuration(file: FileIdentity) -> dict[str, Any]:
    """Reads a JSON file's object. Raises InputError if the file has changed since it was
    identified.
    """
    check_content(file)
    return read_json(Path(file.path))


def check_content(*files: FileIdentity) -> None:
    """Raises InputError if a small file's content has changed since it was identified."""
    for file in files:
        if content_hash(file.path) != file.header:
            raise InputError(f"{file.path}: {CHANGED}")


def content_hash(path: str | Path) -> str:
    """Returns the SHA-256 of a file's bytes."""
    return _content_hash(resolve(path))


def _content_hash(path: Path) -> str:
    return hashlib.sha256(_read(path)).hexdigest()


def _header_hash(path: Path) -> str:
    return hashlib.sha256(read_header(path)[0]).hexdigest()


def _hash(path: Path, status: os.stat_result, of: Callable[[Path], str]) -> str:
    """Returns a hash of a file, remembered as long as the file does not change."""
    if time.time_ns() - max(status.st_mtime_ns, status.st_ctime_ns) < SETTLED_NS:
        return of(path)
    version = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return _remembered_hash(path, version, of)


@lru_cache(maxsize=FILES)
def _remembered_hash(path: Path, version: tuple[int, ...], of: Callable[[Path], str]) -> str:
    return of(path)


def file_identity(path: str | Path) -> FileIdentity:
    """Returns the identity of a safetensors file, with a hash of its header and the identities of
    its companions. Raises InputError for a pickle, and if the header contradicts the file.
    """
    path = resolve(path)
    if not path.is_file():
        raise InputError(f"{path}: expected a safetensors file, got a folder")
    status = path.stat()
    companions = (path.with_name(name) for name in COMPANIONS.get(path.name.lower(), ()))
    return FileIdentity(
        str(path),
        status.st_size,
        status.st_mtime_ns,
        _hash(path, status, _header_hash),
        companions=tuple(configuration_identity(one) for one in companions if one.exists()),
    )


def read_header(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Reads the header of a safetensors file as bytes and JSON, and checks it against the file's
    size.

    Layout: header length in 8 bytes (little-endian), the header, the tensors' bytes without gaps
    (github.com/huggingface/safetensors).
    """
    if is_pickle(path):
        load = (
            "import torch; from safetensors.torch import save_file as s; d = "
            f"torch.load('{path}', weights_only=True)"
        )
        copied = (
            "k: v.clone(memory_format=torch.contiguous_format) for k, v in "
            "d.get('state_dict', d).items() if torch.is_tensor(v)"
        )
        raise InputError(
            f'{path}: {PICKLE}: convert it with python -c "{load}; s({{{copied}}}, '
            f"'{path.with_suffix(USUAL_ENDING)}')\""
        )
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            return read_header_of(str(path), file.read, size)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def header(path: Path) -> Header:
    """Returns a file's header and tensor offset. Raises the errors of `read_header`."""
    text, entries = read_header(path)
    return Header(path, LENGTH_BYTES + len(text), entries)


def read_header_of(
    name: str, read: Callable[[int], bytes], size: int | None
) -> tuple[bytes, dict[str, Any]]:
    """Reads the header of a safetensors file from its start. `read(n)` returns the next n bytes,
    fewer only at the end of the file. `size`: bytes of the file, None if unknown.
    """
    start = read(LENGTH_BYTES)
    length = int.from_bytes(start, "little")
    most = LONGEST_HEADER if size is None else min(size - LENGTH_BYTES, LONGEST_HEADER)
    if len(start) < LENGTH_BYTES or not 2 <= length <= most:
        start = (start + read(LONGEST_SIGN - len(start))).lstrip()
        if (
            foreign := next(
                (words for sign, words in FOREIGN.items() if start.startswith(sign)), None
            )
        ) is not None:
            raise InputError(f"{name}: {foreign}")
        has = "is shorter" if size is None else f"has {size:,}"
        raise InputError(
            f"{name}: not a safetensors file, or cut off: it declares a header of {length:,} "
            f"bytes, the file {has}"
        )
    header = read(length)
    return header, parse_header(name, header, size)


def parse_header(name: str, header: bytes, size: int | None = None) -> dict[str, Any]:
    """Returns the entries of a safetensors header. Raises InputError if the header contradicts
    itself or the given size of the file.
    """
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):
        raise InputError(f"{name}: not a safetensors file: its header is not JSON") from None
    if not isinstance(entries, dict):
        raise InputError(
            f"{name}: not a safetensors file: its header is a {type(entries).__name__}, "
            "expected an object"
        )
    _check_layout(name, entries, None if size is None else size - LENGTH_BYTES - len(header))
    return entries


def size_by_header(header: bytes, entries: Mapping[str, Any]) -> int:
    """Returns the size in bytes of the file described by a header."""
    ends = (entry["data_offsets"][1] for _, entry in tensor_entries(entries))
    return LENGTH_BYTES + len(header) + max(ends, default=0)


def _check_layout(file: str, entries: dict[str, Any], available: int | None) -> None:
    metadata = entries.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(value, str) for value in metadata.values()
    ):
        raise InputError(
            f"{file}: not a safetensors file: its __metadata__ is not an object of texts"
        )
    spans = []
    for name, entry in tensor_entries(entries):
        try:
            start, end = entry["data_offsets"]
            whole = all(
                type(number) is int and number >= 0 for number in (start, end, *entry["shape"])
            )
            sound = (
                whole
                and start <= end
                and 8 * (end - start) == VALUE_BITS[entry["dtype"]] * math.prod(entry["shape"])
            )
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise InputError(
                f"{file}: the header contradicts itself at {name!r} (type, shape and offsets do "
                "not agree): download the file again"
            )
        spans.append((start, end, name))
    reached = 0
    for start, end, name in sorted(spans):
        if start != reached:
            raise InputError(
                f"{file}: the header contradicts itself: {name!r} begins at byte {start:,}, "
                f"expected {reached:,}: download the file again"
            )
        reached = end
    if available is not None and reached != available:
        problem = "truncated" if reached > available else "has bytes that belong to no tensor"
        raise InputError(
            f"{file}: {problem}: its tensors take {reached:,} bytes, the file has {available:,}: "
            "download it again"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Reads the object in a JSON file. Raises InputError for other content."""
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{path}: expected a JSON object, got a {type(value).__name__}")
    return value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
