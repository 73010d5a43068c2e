"""Restores process state after a pack's code changed it, so that other code is not affected. Must
not know nodes and graphs.

If code imports modules, even inside a node, its additions to the environment, `sys.path`, the
warning filters and similar aspects (`Aspect.grows`) stay.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from katz_graph.core.messages import one_line, shorten, show
from katz_graph.host.deferred_imports import is_importing
from katz_graph.host.own_changes import own_changes
from katz_graph.host.process_aspects import ASPECTS, MODULES, Aspect, State

UNREADABLE = object()  # marks a state that cannot be read
Warn = Callable[[str], None]


class ProcessState:
    """Restores process state that pack code changes. A process has one instance for all its runs,
    which may overlap. State shared by threads is compared when no thread runs pack code.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: dict[Aspect, State] = {}
        self._ended: Mapping[Aspect, int] = {}  # completed changes of this program
        self._inside = 0
        self._names: dict[str, Warn] = {}  # of code that may have changed the state
        self._reported: set[tuple[str, str]] = set()

    @contextmanager
    def guarded(self, name: str, warn: Warn) -> Iterator[None]:
        """Runs a pack's code and then restores the process state that it changed. `warn` gets one
        line per `name` and aspect.
        """
        self._enter(name, warn)
        own = {aspect: _state_of(aspect) for aspect in ASPECTS if aspect.own and _loaded(aspect)}
        try:
            yield
        finally:
            for aspect, before in own.items():
                self._look(aspect, before, {name: warn})
            self._leave()

    def _enter(self, name: str, warn: Warn) -> None:
        with self._lock:
            if not self._inside:
                self._begin()
            self._inside += 1
            self._names.setdefault(name, warn)

    def _leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            names, self._names = self._names, {}
            own = own_changes.since(self._ended)
            for aspect, before in list(self._shared.items()):
                if aspect not in own:
                    self._look(aspect, before, names)

    def _begin(self) -> None:
        """Takes a new snapshot of the shared state: code outside packs may have changed it."""
        self._ended = own_changes.ended()
        self._shared = {
            aspect: _state_of(aspect) for aspect in ASPECTS if not aspect.own and _loaded(aspect)
        }

    def _look(self, aspect: Aspect, before: State, names: Mapping[str, Warn]) -> None:
        """Restores an aspect if it has changed, and reports the change."""
        now = _state_of(aspect)
        if before is UNREADABLE or now is before or now == before:
            return
        if aspect.grows and sys.modules.keys() - self._shared[MODULES].keys():
            before = _with_additions(before, now)
            if now == before:
                return
        restored = "it was restored"
        try:
            aspect.restore(before)
        except Exception as error:
            restored = f"it cannot be restored ({one_line(type(error).__name__)})"
        who = " or ".join(names)
        if aspect.reported and (who, aspect.name) not in self._reported:
            self._reported.add((who, aspect.name))
            change = _described(before, now)
            for warn in names.values():
                warn(f"{who} changed {aspect.name}{change} for this whole process: {restored}")


def _state_of(aspect: Aspect) -> State:
    try:
        return aspect.read()
    except Exception:  # raised by code that replaced the library's
        return UNREADABLE


def _loaded(aspect: Aspect) -> bool:
    """Returns whether an aspect can be read: its module is loaded and no thread is importing it."""
    if not aspect.module:
        return True
    module = sys.modules.get(aspect.module)
    return module is not None and not is_importing(module)


def _with_additions(before: State, now: State) -> State:
    """Returns the earlier state with entries added later, which newly imported modules may need."""
    if now is UNREADABLE:
        return before
    if isinstance(before, dict):
        return {**{name: value for name, value in now.items() if name not in before}, **before}
    if isinstance(before, list):
        return [*before, *(one for one in now if one not in before)]
    return now if before is None else before


def _described(before: State, now: State) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted(
            name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
        )
        return f" ({', '.join(one_line(_text(name)) for name in names[:5])})"
    if isinstance(before, str | int | float | bool) or before is None:
        return f" from {shorten(show(before), 80)} to {shorten(show(now), 80)}"
    return ""


def _text(name: bytes | str) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")
