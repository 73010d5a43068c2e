"""Runs node code in torch's inference mode, which packs expect: they modify the engine's tensors in
place and need no gradients. Never imports torch.

The mode belongs to a thread, not a task. A coroutine enters it for each of its steps, so that
interleaved coroutines neither see nor change it.
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
    """Holds the torch modes of a coroutine at its last await."""

    inference: bool = True
    gradients: bool = False


@contextmanager
def inference_mode() -> Iterator[None]:
    """Enters inference mode; does nothing unless torch is loaded."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        yield
        return
    with torch.inference_mode():
        yield


def in_inference_mode(function: Callable[Given, Any]) -> Callable[Given, Any]:
    """Wraps a function so that it and its returned coroutine run in inference mode. The wrapper of
    a coroutine function is a coroutine function too.
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
    """Awaits a coroutine. Restores at each step the torch modes of its previous step."""

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
            except BaseException as error:  # thrown into the coroutine, which may handle it
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
