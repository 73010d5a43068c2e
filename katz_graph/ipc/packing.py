"""Serialises plain values, including big integers and lone surrogates, by msgpack. Never uses
pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgpack

BIG_INTEGER_TYPE = 1  # extension type of integers beyond 64 bits
UNREADABLE = (ValueError, TypeError, msgpack.UnpackException)
"""Errors raised when unpacking bytes that `pack` did not make."""


def pack(value: Any) -> bytes:
    """Packs a value; tuples arrive as lists. Raises TypeError or ValueError if it is not plain."""
    data: bytes = msgpack.packb(value, default=_widen, unicode_errors="surrogatepass")
    return data


def unpack(data: bytes | memoryview) -> Any:
    return msgpack.unpackb(data, **_UNPACKING)


def unpacker(largest: int) -> msgpack.Unpacker:
    """Returns an iterator over complete values, fed by `feed`; buffers at most `largest` bytes."""
    return msgpack.Unpacker(max_buffer_size=largest, **_UNPACKING)


def _widen(value: Any) -> msgpack.ExtType:
    if not isinstance(value, int):
        raise TypeError(f"cannot send a {type(value).__module__}.{type(value).__qualname__}")
    return msgpack.ExtType(BIG_INTEGER_TYPE, f"{value:x}".encode())


def _extension(code: int, data: bytes) -> int:
    if code != BIG_INTEGER_TYPE:
        raise ValueError(f"extension {code} is not known")
    return int(data, 16)


_UNPACKING: Mapping[str, Any] = MappingProxyType(
    {"ext_hook": _extension, "unicode_errors": "surrogatepass", "strict_map_key": False},
)
