"""Limits request bodies: their size by route, and the time that they take to arrive. Must not know
their content.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from http import HTTPStatus

from starlette.types import Message, Receive

from katz_graph.web.http.responses import Refusal
from katz_graph.web.options import KB, MB, Limits

HELD = "katz.held"
"""The scope key of the ExitStack that releases a request's resources when it is answered."""
OTHER_BODY_BYTES = 64 * KB  # of routes that BODY_BYTES does not list
ENVELOPE_BYTES = MB  # of an upload's body in addition to the file
BODY_BYTES: tuple[tuple[re.Pattern[str], Callable[[Limits], int]], ...] = (
    (re.compile(r"/upload/\w+"), lambda limits: limits.upload_bytes + ENVELOPE_BYTES),
    # a picture with a workflow; for JSON, its reader enforces `prompt_bytes` while the body arrives
    (re.compile(r"/prompt|/katz/(open|check)"), lambda limits: limits.body_bytes),
    (re.compile(r"/katz/(plan|tokens|unfold)"), lambda limits: limits.prompt_bytes),
    (re.compile(r"/userdata/.+"), lambda limits: limits.body_bytes),
    # twice the stored size: texts may be escaped
    (re.compile(r"/settings(/.*)?"), lambda limits: 2 * MB),
    (re.compile(r"/queue|/history|/jobs/cancel"), lambda limits: MB),  # 10,000 ids
    (re.compile(r"/katz/files/(trash|restore)"), lambda limits: 2 * MB),  # 1,000 names
    (re.compile(r"/katz/presence"), lambda limits: 256 * KB),  # 100 names
)
"""Lists the routes whose bodies may exceed OTHER_BODY_BYTES, without `/api`."""
MAX_SILENCE_S = 30.0  # longest pause while a body arrives
MIN_BYTES_PER_S = 2**13  # average rate of a body, required after MAX_SILENCE_S


def body_limit(path: str, limits: Limits) -> int:
    """Returns the limit of the request body for a path, in bytes."""
    path = path.removeprefix("/api")
    return next(
        (most(limits) for route, most in BODY_BYTES if route.fullmatch(path)), OTHER_BODY_BYTES
    )


def too_large(limit: int) -> str:
    return f"the body exceeds this server's limit of {limit:,} bytes"


class BoundedBody:
    """Counts a body's bytes as they arrive. Raises Refusal 413 over the limit, and 408 if the body
    stalls or arrives too slowly.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._taken, self._whole = 0, False
        self._waited = 0.0  # seconds; excludes the time that routes spend on the body

    async def receive(self) -> Message:
        if self._whole:
            return await self._receive()
        began = time.monotonic()
        try:
            async with asyncio.timeout(
                min(MAX_SILENCE_S, MAX_SILENCE_S + self._taken / MIN_BYTES_PER_S - self._waited)
            ):
                message = await self._receive()
        except TimeoutError:
            raise Refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                "the body arrived too slowly, or stopped arriving",
                "timeout",
            ) from None
        self._waited += time.monotonic() - began
        self._whole = message["type"] != "http.request" or not message.get("more_body", False)
        self._taken += len(message.get("body", b""))
        if self._taken > self._limit:
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_large(self._limit), "too_large")
        return message
