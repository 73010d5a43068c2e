"""Runs awaitables from synchronous code. Must not know graphs."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from katz_graph.host.inference import inference_mode


def settled(value: Any) -> Any:
    """Runs an awaitable to completion on a new event loop and returns its result; returns other
    values unchanged. Uses another thread if this one runs a loop.
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
    with inference_mode():  # includes tasks that node code starts
        return asyncio.run(_awaited(value))


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
