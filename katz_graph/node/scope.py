"""Exposes the current run, node and pack to a pack's code through context variables that the graph
run and the pack loader set. Defines the value that blocks the readers of an output.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from katz_graph.core.errors import RunError
from katz_graph.ir.provenance import Provenance
from katz_graph.node.types import Context


@dataclass(frozen=True, slots=True)
class Running:
    """Describes a running node: the services of its run, its id in the graph, the pack of its type,
    a counter that numbers the graphs that it builds, and the provenance of the samplers that it
    ran.
    """

    context: Context
    node: str = ""
    pack: str = ""
    graphs: Iterator[int] = field(default_factory=count)
    sampled: list[Provenance] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ExecutionBlocker:
    """Stops the nodes that read this output: with an error if `message` is set, else silently."""

    message: str | None


_running: ContextVar[Running | None] = ContextVar("katz_graph_running", default=None)


@contextmanager
def running(context: Context, node: str = "", pack: str = "") -> Iterator[Running]:
    """Makes this run available to a node's code: progress bars, folders, model calls. Lasts across
    the awaits of async nodes.
    """
    now = Running(context, node, pack)
    token = _running.set(now)
    try:
        yield now
    finally:
        _running.reset(token)


@contextmanager
def acting_as(pack: str) -> Iterator[None]:
    """Attributes the work inside the `with` statement to this pack, for the running node."""
    now = _running.get()
    token = _running.set(None if now is None else replace(now, pack=pack))
    try:
        yield
    finally:
        _running.reset(token)


def staying(result: Any) -> Any:
    """Returns a node's result. Wraps an awaitable so that it runs in the current node's scope."""
    return _awaited(result, _running.get()) if inspect.isawaitable(result) else result


async def _awaited(awaitable: Awaitable[Any], now: Running | None) -> Any:
    token = _running.set(now)
    try:
        return await awaitable
    finally:
        _running.reset(token)


def current() -> Running | None:
    """Returns the running node; None while packs are loaded or described."""
    return _running.get()


def current_context(purpose: str) -> Context:
    """Returns the services of the run. Raises RunError if no node runs."""
    now = _running.get()
    if now is None:
        raise RunError(f"{purpose} only works while a node runs")
    return now.context
