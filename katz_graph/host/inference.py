"""Runs the code of nodes in torch's inference mode, which packs are written for: they change in
place what the engine made, and keep no gradients. Never imports torch.

The mode belongs to a thread and not to a task, so a coroutine enters it for each of its steps:
others that run in between neither see nor change it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec

Given = ParamSpec("Given")


@dataclass(frozen=True, slots=True)
class _Modes:
    """Holds the modes of torch that a coroutine left at an await."""

    inference: bool = True
    gradients: bool = False


@contextmanager
def inference_mode() -> Iterator[None]:
    """Enters the mode; does nothing where torch is not in use."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.inference_mode():
        yield


def in_inference_mode(function: Callable[Given, Any]) -> Callable[Given, Any]:
    """Returns the function as one that runs in inference mode, also what it leaves to be awaited.
    A coroutine function stays one.
    """
    if inspect.iscoroutinefunction(function):

        async def run_async(*given: Given.args, **named: Given.kwargs) -> Any:
            return await _Stepped(function(*given, **named))

        return run_async

    def run(*given: Given.args, **named: Given.kwargs) -> Any:
        with inference_mode():
            result = function(*given, **named)
        return _Stepped(result) if inspect.iscoroutine(result) else result

    return run


class _Stepped(Awaitable[Any]):
    """Awaits a coroutine, each step of which begins with the modes that the one before left."""

    def __init__(self, coroutine: Awaitable[Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        advance: Callable[[], Any] = partial(next, steps)
        modes = _Modes()
        while True:
            with _entered(modes):
                try:
                    awaited = advance()
                except StopIteration as end:
                    return end.value
                modes = _now(modes)
            try:
                advance = partial(steps.send, (yield awaited))
            except BaseException as error:  # the coroutine decides what becomes of it
                advance = partial(steps.throw, error)


@contextmanager
def _entered(modes: _Modes) -> Iterator[None]:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.inference_mode(modes.inference), torch.set_grad_enabled(modes.gradients):
        yield


def _now(before: _Modes) -> _Modes:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return before
    return _Modes(torch.is_inference_mode_enabled(), torch.is_grad_enabled())
