"""Large JSON answers, written a page at a time and away from the event loop, so that neither memory nor other clients suffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import TypeVar

from starlette.responses import StreamingResponse

PAGE = 16  # jobs that are read and written together
Item = TypeVar("Item")


def streamed(pieces: AsyncIterable[bytes]) -> StreamingResponse:
    """An answer in JSON that is made while it is sent."""
    return StreamingResponse(pieces, media_type="application/json")


async def joined(pages: AsyncIterable[Sequence[Item]], write: Callable[[Item], str]) -> AsyncIterator[bytes]:
    """The JSON of items, as `write` has it, with commas between them."""
    comma = b""
    async for page in pages:
        if page:
            yield comma + await asyncio.to_thread(_written, page, write)
            comma = b","


def _written(page: Sequence[Item], write: Callable[[Item], str]) -> bytes:
    return ",".join(map(write, page)).encode()


async def paged(items: Sequence[Item]) -> AsyncIterator[Sequence[Item]]:
    """What is in memory already."""
    for start in range(0, len(items), PAGE):
        yield items[start : start + PAGE]
