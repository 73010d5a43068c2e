"""Interrupts a wait as soon as the run is cancelled. Must not know the awaited operation."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from katz_graph.core.errors import Cancelled
from katz_graph.node.types import Context

Awaited = TypeVar("Awaited")


@contextmanager
def cancellation(context: Context | None) -> Iterator[Future[None]]:
    """Yields a future that fails with Cancelled when the run is cancelled; without a context it
    never completes.
    """
    cancelled: Future[None] = Future()

    def fail() -> None:
        with suppress(InvalidStateError):  # already cancelled
            cancelled.set_exception(Cancelled("cancelled"))

    forget = None if context is None else context.on_cancel(fail)
    try:
        yield cancelled
    finally:
        if forget is not None:
            forget()


def unless(cancelled: Future[None], awaited: Future[Awaited]) -> Awaited:
    """Waits for a future and returns its result; raises Cancelled if the run is cancelled first."""
    both: tuple[Future[Any], ...] = (awaited, cancelled)
    try:
        wait(both, return_when=FIRST_COMPLETED)
        if cancelled.done():
            cancelled.result()
        return awaited.result()
    finally:
        # the error's traceback references this frame, and the future references the error
        del awaited, cancelled, both
