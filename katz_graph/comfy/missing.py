"""Provides stand-ins for unimplemented names that packs import. Importing one succeeds; using it
raises NotThere with its dotted name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from katz_graph.core.errors import RunError
from katz_graph.node.scope import current

_missed: ContextVar[dict[str, None] | None] = ContextVar("katz_graph_missed", default=None)


class NotThere(AttributeError, RunError):
    """A pack used a name that this engine does not implement. It is also an AttributeError, so
    `hasattr` and `getattr` with a default work.
    """


def refuse(name: str) -> NoReturn:
    """Raises NotThere for a dotted name, with the name of the running pack."""
    now = current()
    who = f"pack {now.pack}" if now is not None and now.pack else "the pack"
    raise NotThere(f"{who} needs {name}, which Katz Graph does not have")


def _used(cls: Any, *_: Any, **__: Any) -> NoReturn:
    refuse(cls.dotted_name)


class _AbsentType(type):
    """Metaclass of stand-ins: they can be imported, named and inherited from, but not called or
    iterated.
    """

    dotted_name: str

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.dotted_name}.{name}")

    __call__ = __iter__ = __len__ = __getitem__ = __setitem__ = __contains__ = __add__ = (
        __radd__
    ) = _used
    __enter__ = __exit__ = __int__ = __float__ = __index__ = _used

    def __repr__(cls) -> str:
        return f"<{cls.dotted_name}: not in Katz Graph>"


def absent(name: str) -> Any:
    """Returns a stand-in for the dotted name. Every use except import, inheritance and annotation
    raises NotThere.
    """
    return _AbsentType(name.rsplit(".", 1)[-1], (), {"dotted_name": name})


def absent_base(cls: Any) -> str | None:
    """Returns the dotted name of the stand-in that a class inherits from; None if it inherits from
    none.
    """
    return cls.dotted_name if isinstance(cls, _AbsentType) else None


def missing_names(module: str, names: str | None) -> Callable[[str], Any]:
    """Builds a `__getattr__` for a shim module. Known `names` (separated by spaces; None: all)
    return stand-ins and are recorded as missed.

    Other names raise AttributeError, so packs can test for them.
    """
    known = None if names is None else frozenset(names.split())

    def get(name: str) -> Any:
        if name.startswith("__") or (known is not None and name not in known):
            raise AttributeError(f"{module}.{name} is not in Katz Graph", name=name)
        note_missed(f"{module}.{name}")
        return absent(f"{module}.{name}")

    return get


@contextmanager
def noting_missed() -> Iterator[dict[str, None]]:
    """Collects the stand-ins that a pack gets from shims, in order."""
    names: dict[str, None] = {}
    token = _missed.set(names)
    try:
        yield names
    finally:
        _missed.reset(token)


def note_missed(name: str) -> None:
    names = _missed.get()
    if names is not None:
        names[name] = None
