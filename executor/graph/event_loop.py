"""Runs the event loop of one graph run, in the caller's thread. The loop runs between nodes, so
that asynchronous nodes overlap with others.

The loop does not run during a synchronous node, so that the node's code may start its own loop.
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

PATIENCE = 1.0  # seconds for cancelled tasks to clean up

Done = Callable[[], Any]  # returns the result of a finished task, or raises its exception


class Tasks:
    """Runs the asynchronous tasks of one graph run. Reports failures of unawaited tasks to the run
    as warnings. Waits end if the run is cancelled.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._finished: deque[tuple[Any, Done]] = deque()

    def __bool__(self) -> bool:
        return bool(self._running or self._finished)

    def start(self, owner: Any, values: Sequence[Any]) -> None:
        """Awaits all awaitables among `values` concurrently. `finished` then returns `owner` and a
        function that returns all results.
        """
        task = self._task(values)
        self._running.add(task)
        task.add_done_callback(lambda done: self._end(owner, done))

    def finished(self) -> tuple[Any, Done] | None:
        """Returns each owner of finished tasks once; None if none is left."""
        return self._finished.popleft() if self._finished else None

    def turn(self) -> None:
        """Runs ready tasks up to their next await."""
        if self._running and self._loop is not None:
            self._loop.call_soon(self._loop.stop)
            self._run_forever(self._loop)

    def wait(self) -> None:
        """Waits until a task finishes."""
        if self._loop is not None:
            self._run_while(self._loop, lambda: bool(self._running and not self._finished))

    def settle(self, value: Any) -> Any:
        """Waits for an awaitable and returns its result; returns other values unchanged."""
        if not inspect.isawaitable(value):
            return value
        task, loop = self._task([value]), self.open()
        task.add_done_callback(lambda done: loop.stop())
        self._run_while(loop, lambda: not task.done())
        return _result(task)[0]

    def close(self) -> None:
        """Cancels remaining tasks, including background tasks of nodes."""
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
                    task.exception()  # retrieves it, so that asyncio does not log it
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
        """Returns the loop, created at first use. Raises RunError if this thread already runs
        one.
        """
        if self._loop is None:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                raise RunError(
                    "is asynchronous, but this thread already runs an event loop; run the graph "
                    "in another thread"
                )
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(self._complain)
        return self._loop

    def _run_while(self, loop: asyncio.AbstractEventLoop, waiting: Callable[[], bool]) -> None:
        """Runs the loop until a finished task or the cancellation of the run stops it."""

        def stop() -> None:
            with suppress(RuntimeError):  # the loop is closed: the run is over
                loop.call_soon_threadsafe(loop.stop)

        forget = self._context.on_cancel(stop)
        try:
            while waiting():
                self._context.check_cancelled()
                self._run_forever(loop)
        finally:
            forget()

    def _run_forever(self, loop: asyncio.AbstractEventLoop) -> None:
        # tasks that nodes start are node code too
        with inference_mode(), suppress(SystemExit):  # SystemExit is also its task's result
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
            "a background task of an asynchronous node failed: "
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
        raise RunError("its own code cancelled the task")
    return task.result()
