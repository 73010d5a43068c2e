"""Runs the event loop of one graph run, in the thread of the caller. It turns between nodes, so
that asynchronous ones overlap with the others.

While a node that is not asynchronous runs, no loop is running: its code may start one of its own.
Must not know graphs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from katz_graph.core.errors import RunError
from katz_graph.host.inference import inference_mode
from katz_graph.node.types import Context

PATIENCE = 1.0  # seconds that cancelled tasks get to clean up

Done = Callable[[], Any]  # gives the result of something finished, or raises what it raised


class Tasks:
    """Runs the asynchronous tasks of one graph run. The run hears of failed tasks that nobody
    awaits; waiting ends when it is cancelled.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._finished: deque[tuple[Any, Done]] = deque()

    def __bool__(self) -> bool:
        return bool(self._running or self._finished)

    def start(self, owner: Any, values: Sequence[Any]) -> None:
        """Awaits all awaitables among `values` together; `finished` gives `owner` back with a
        function that has all results.
        """
        task = self._task(values)
        self._running.add(task)
        task.add_done_callback(lambda done: self._end(owner, done))

    def finished(self) -> tuple[Any, Done] | None:
        """Returns an owner whose tasks are over, once; None when there is none."""
        return self._finished.popleft() if self._finished else None

    def turn(self) -> None:
        """Lets what is ready go on up to its next await."""
        if self._running and self._loop is not None:
            self._loop.call_soon(self._loop.stop)
            self._run_forever(self._loop)

    def wait(self) -> None:
        """Waits until something finishes."""
        if self._loop is not None:
            self._run_while(self._loop, lambda: bool(self._running and not self._finished))

    def settle(self, value: Any) -> Any:
        """Waits for an awaitable and returns its result; returns anything else as it is."""
        if not inspect.isawaitable(value):
            return value
        task, loop = self._task([value]), self.open()
        task.add_done_callback(lambda done: loop.stop())
        self._run_while(loop, lambda: not task.done())
        return _result(task)[0]

    def close(self) -> None:
        """Cancels whatever is left, also what nodes started and left behind."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        try:
            with inference_mode():
                if left:
                    loop.run_until_complete(asyncio.wait(left, timeout=PATIENCE))
                loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            for task in left:
                if task.done() and not task.cancelled():
                    task.exception()  # asked for, so that asyncio does not complain that nobody did
            loop.set_exception_handler(lambda *_: None)
            loop.close()

    def _task(self, values: Sequence[Any]) -> asyncio.Task[list[Any]]:
        loop = self.open()
        pending = {
            number: asyncio.ensure_future(value, loop=loop)
            for number, value in enumerate(values)
            if inspect.isawaitable(value)
        }
        return loop.create_task(_all(values, pending))

    def open(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, made at first need. RunError where this thread runs one already."""
        if self._loop is None:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                raise RunError(
                    "is asynchronous, and this thread runs an event loop already; run the graph in "
                    "another thread"
                )
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(self._complain)
        return self._loop

    def _run_while(self, loop: asyncio.AbstractEventLoop, waiting: Callable[[], bool]) -> None:
        """Runs the loop until whoever ends the waiting, or cancels the run, has stopped it."""

        def stop() -> None:
            with suppress(RuntimeError):  # it is closed: the run is over
                loop.call_soon_threadsafe(loop.stop)

        forget = self._context.on_cancel(stop)
        try:
            while waiting():
                self._context.check_cancelled()
                self._run_forever(loop)
        finally:
            forget()

    def _run_forever(self, loop: asyncio.AbstractEventLoop) -> None:
        # tasks that nodes begin are their code, too
        with inference_mode(), suppress(SystemExit):  # which is the result of its task, too
            loop.run_forever()

    def _end(self, owner: Any, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._finished.append((owner, lambda: _result(task)))
        if self._loop is not None:
            self._loop.stop()

    def _complain(self, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        error = about.get("exception")
        what = (
            f"{type(error).__name__}: {error}" if error is not None else str(about.get("message"))
        )
        self._context.warn(
            "something that an asynchronous node left behind failed: "
            f"{what.splitlines()[0] if what else ''}"
        )


async def _all(values: Sequence[Any], pending: Mapping[int, asyncio.Future[Any]]) -> list[Any]:
    try:
        await asyncio.gather(*pending.values())
    finally:
        for task in pending.values():
            task.cancel()
    return [
        pending[number].result() if number in pending else value
        for number, value in enumerate(values)
    ]


def _result(task: asyncio.Task[Any]) -> Any:
    if task.cancelled():
        raise RunError("its own code cancelled it")
    return task.result()
