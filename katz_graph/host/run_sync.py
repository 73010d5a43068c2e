"""Returns the result of an awaitable to code that does not await. Must not know graphs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from katz_graph.host.inference import inference_mode


def settled(value: Any) -> Any:
    """Awaits an awaitable on an event loop of its own (in another thread where this one runs a
    loop) and returns its result; anything else as it is.
    """
    if not inspect.isawaitable(value):
        return value
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(value)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_run, value).result()


def _run(value: Awaitable[Any]) -> Any:
    with inference_mode():  # tasks that the code of nodes begins are part of it
        return asyncio.run(_awaited(value))


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
