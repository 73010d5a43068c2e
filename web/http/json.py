"""Writes plain data as JSON that every parser takes. Must not know what the data means."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.responses import StreamingResponse


def json_text(data: Any, **options: Any) -> str:
    """Writes short JSON. Numbers that it does not have (a pack's NaN) become null, and lone
    surrogates question marks. `options` are further ones of `json.dumps`.
    """
    try:
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False, **options)
    except ValueError:
        text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), **options)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _finite(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(value) for value in data] if isinstance(data, (list, tuple)) else data


PAGE = 16  # jobs that are read and written together
Item = TypeVar("Item")


def streamed(pieces: AsyncIterable[bytes]) -> StreamingResponse:
    """Answers with JSON that is made while it is sent."""
    return StreamingResponse(pieces, media_type="application/json")


async def joined(pages: AsyncIterable[Sequence[Item]], write: Callable[[Item], str]) -> AsyncIterator[bytes]:
    """Writes the items by `write`, with commas between them."""
    comma = b""
    async for page in pages:
        if page:
            yield comma + await asyncio.to_thread(_written, page, write)
            comma = b","


def _written(page: Sequence[Item], write: Callable[[Item], str]) -> bytes:
    return ",".join(map(write, page)).encode()


async def paged(items: Sequence[Item]) -> AsyncIterator[Sequence[Item]]:
    """Splits a sequence in memory into pages."""
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]
