"""Computes typed Merkle signatures: one digest of everything that determines a node's result. Ids
do not matter; 1, 1.0 and true are three different values.

Takes linear time: a link contributes its source's signature, never the source's ancestry.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import struct
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from typing import Any

from katz_graph.core.graph import Link

Signature = bytes
NAN = "NaN"
SIZE = 20  # bytes; the first collision is expected at about 2^80 different nodes


class Unsignable(Exception):
    """Reports a value whose content cannot be determined: results that depend on it are never
    cached.
    """


def node_signature(
    type_: str, fingerprint: Any, inputs: Mapping[str, Any], sources: Mapping[str, Signature]
) -> Signature:
    """Hashes everything that determines a node's result: type, fingerprint, literals with their
    types, and links as (signature of the source, output).

    `sources` contains the signature of every node that `inputs` link to. Raises Unsignable if a
    literal or the fingerprint is unsignable.
    """
    parts = [_name(type_)]
    try:
        parts.append(value_token(fingerprint))
        for name in sorted(inputs):
            value = inputs[name]
            token = (
                b"L" + sources[value.node] + struct.pack(">q", value.output)
                if isinstance(value, Link)
                else value_token(value)
            )
            parts += (_name(name), token)
    except RecursionError:
        raise Unsignable("a value that contains itself") from None
    return hashlib.blake2b(b"".join(parts), digest_size=SIZE).digest()


def value_token(value: Any) -> bytes:
    """Returns bytes that are equal only for values of equal type and content. Raises Unsignable for
    NaN of any type, because NaN equals no value.
    """
    if value is None:
        return b"N"
    kind = type(value)
    if kind is bool:
        return b"T" if value else b"F"
    if kind is int:
        return b"i" + _sized(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    if kind is float:
        if math.isnan(value):
            raise Unsignable(NAN)
        return b"f" + struct.pack(">d", value)
    if kind is str:
        return b"s" + _sized(value.encode("utf-8", "surrogatepass"))
    if kind in (bytes, bytearray):
        return b"b" + _sized(bytes(value))
    if kind in (list, tuple):
        return _sequence(b"l" if kind is list else b"t", map(value_token, value))
    if isinstance(value, Mapping):
        return _sequence(
            b"d", sorted(value_token(key) + value_token(item) for key, item in value.items())
        )
    if kind in (set, frozenset):
        return _sequence(b"S", sorted(map(value_token, value)))
    if isinstance(value, Enum):
        return b"e" + _named(kind) + _sized(value.name.encode())
    if isinstance(value, PurePath):
        return b"p" + _sized(str(value).encode("utf-8", "surrogatepass"))
    if dataclasses.is_dataclass(value):
        fields = [
            getattr(value, field.name) for field in dataclasses.fields(value) if field.compare
        ]
        return b"r" + _named(kind) + _sequence(b"t", map(value_token, fields))
    return _array(value)


def _array(value: Any) -> bytes:
    """Hashes tensors, NumPy arrays and NumPy scalars by their bytes, without importing either
    library. Raises Unsignable for other values.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise Unsignable(str(value.layout))
        _refuse_nan(value)
        data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        return (
            b"a"
            + _sized(f"{value.dtype}{tuple(value.shape)}".encode())
            + hashlib.blake2b(data, digest_size=SIZE).digest()
        )
    numpy = sys.modules.get("numpy")
    if (
        numpy is not None
        and isinstance(value, (numpy.ndarray, numpy.generic))
        and not value.dtype.hasobject
    ):
        _refuse_nan(value)
        data = numpy.ascontiguousarray(value).tobytes()
        return (
            b"n"
            + _sized(f"{value.dtype}{value.shape}".encode())
            + hashlib.blake2b(data, digest_size=SIZE).digest()
        )
    raise Unsignable(type(value).__name__)


def _refuse_nan(value: Any) -> None:
    """Raises Unsignable for a scalar NaN. In an array with dimensions, NaN is an ordinary value."""
    if not value.shape and bool(value != value):
        raise Unsignable(NAN)


@lru_cache(maxsize=4096)
def _name(text: str) -> bytes:
    return _sized(text.encode("utf-8", "surrogatepass"))


def _named(kind: type) -> bytes:
    return _sized(f"{kind.__module__}.{kind.__qualname__}".encode())


def _sized(data: bytes) -> bytes:
    return struct.pack(">Q", len(data)) + data


def _sequence(mark: bytes, tokens: Iterable[bytes]) -> bytes:
    listed = list(tokens)
    return mark + struct.pack(">Q", len(listed)) + b"".join(listed)
